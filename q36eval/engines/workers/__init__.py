"""Replicas of an engine as Ray actors, which share its work: on the GPUs of a machine, or on those of a cluster.

An engine divides a list of requests (`BatchedEngine.divided`), and each worker computes whole batches of that division,
like the engine alone (`computed`). So no number depends on the number of workers, on the assignment of batches, or on
lost workers. Replicas are independent: a model that is spread over several GPUs is spread by the engine itself (vLLM's
tensor parallelism), inside one worker.

    worker.py     what runs in a worker, and how its results travel
    pool.py       Ray: connecting, placing, losing and replacing workers
    dispatch.py   units out, results back in order, a lost worker's units again
    engine.py     the engine in front of all that

Only `pool` imports Ray, which is an extra, and only if workers are requested. The options of workers and their
resources are in `q36eval.engines.worker_places`.
"""
