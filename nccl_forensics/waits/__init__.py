"""Who entered, who waits for whom and who never came, from dumps, watchdogs, Inspector and stacks."""
