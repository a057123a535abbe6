"""Does what torchrun does with a script of the pages, whose processes are forks of this one, because importing PyTorch takes seconds:
torchrun.py --standalone --nproc-per-node N SCRIPT ARGUMENTS"""

import gc
import os
import runpy
import signal
import socket
import sys

import torch.distributed
import torch.nn.parallel

_, standalone, option, processes, *sys.argv = sys.argv
if (standalone, option) != ("--standalone", "--nproc-per-node"):
    sys.exit(f"unknown arguments {standalone} {option}")
with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
os.environ.update(OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=processes, LOCAL_WORLD_SIZE=processes)
gc.freeze()  # a collection in a fork would copy all objects
children = set()
for rank in range(int(processes)):
    if (child := os.fork()) == 0:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        torch.set_num_threads(1)
        runpy.run_path(sys.argv[0], run_name="__main__")
        break
    children.add(child)
else:
    failed = False
    while children:
        child, status = os.wait()
        children.remove(child)
        if status and not failed:
            failed = True
            for other in children:
                os.kill(other, signal.SIGTERM)
    sys.exit(failed)
