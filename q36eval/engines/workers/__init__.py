"""Replicas of an engine as Ray actors, which share its work: on the GPUs of a machine, or on those of a cluster.

An engine says how it would divide a list of requests (`BatchedEngine.divided`), and each worker computes whole batches
of that division, as the engine alone would (`computed`). So no number depends on how many workers there are, which of
them computed what, or whether one was lost meanwhile. Replicas are independent: a model that is spread over several
GPUs is spread by the engine itself (vLLM's tensor parallelism), inside one worker.

    worker.py     what runs in a worker, and how its results travel
    pool.py       Ray: connecting, placing, losing and replacing workers
    dispatch.py   units out, results back in order, a lost worker's units again
    engine.py     the engine in front of all that

Only `pool` imports Ray, which is an extra, and only when workers are wanted. The options of workers, and what each
takes of a machine, are in `q36eval.engines.worker_places`.
"""
