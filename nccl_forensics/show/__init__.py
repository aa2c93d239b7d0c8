"""The analysis as a document, and the document as page, ticket, Markdown, tables and trace."""
