"""Samplers, learners and environments as Ray actors, behind the protocols of `cadre.team`.

Every base model has a pool of samplers and a learner; the training process keeps the trees, the order of the work and
all decisions. A request to an actor depends on the work alone, and can be repeated: so one that dies is replaced, and
the run continues as if it had not. Ray is imported here and nowhere else.

    specs         what each actor asks Ray for and builds, as plain records
    ray_actors    the connection to Ray, and actors that are replaced when they die
    processes     the classes that run in the other processes
    remote        the sampler pool and the remote learner in the training process
    environments  environments that step in other processes
    cluster       builds all of these for an experiment
"""
