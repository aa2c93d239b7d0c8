import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jax.experimental import mesh_utils
from mpi4py import MPI

comm = MPI.COMM_WORLD
jax.distributed.initialize("localhost:62464", comm.Get_size(), comm.Get_rank(), local_device_ids=[comm.Get_rank()])
print(f"Process {jax.process_index()} sees devices: ", jax.local_devices())
mesh = Mesh(mesh_utils.create_device_mesh((4, 1)), ("x", "y"))
arr = jax.make_array_from_callback((4, 10), NamedSharding(mesh, P("x", "y")), lambda idx: jnp.ones((1, 10)))
for s in arr.addressable_shards:
    print(jax.process_index(), s.data, s.data.devices())
