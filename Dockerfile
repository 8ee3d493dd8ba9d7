# For machines with NVIDIA GPUs and the NVIDIA container toolkit (docs/one_gpu.md):
#   docker build -t cadre . && docker run --gpus all --shm-size 16g -it cadre cadre train plan-path
# torch's wheels bring CUDA's libraries; the driver is the machine's. The compiler is for kernels made at run time.
# Its packages are known to resolve; the image has not been built with a GPU yet.
FROM python:3.12-slim

RUN apt-get update && apt-get install -y --no-install-recommends build-essential git && rm -rf /var/lib/apt/lists/*
WORKDIR /cadre
COPY requirements-gpu.txt .
RUN pip install --no-cache-dir -r requirements-gpu.txt
COPY . .
RUN pip install --no-cache-dir --no-deps --no-build-isolation -e .
CMD ["cadre", "--help"]
