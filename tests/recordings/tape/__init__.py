"""What a cluster answered to the questions of a probe, kept, and given back without the cluster.

    SEATRIAL_TEST_TAPES=folder pytest probes ... -p tests.recordings.tape.record    one tape a probe
    play(path)                       the probe once more, over the answers: judges, controls and all

The border is where the suite asks: nodes (`Cluster`), ranks (`Gang`), jobs and the observer of
contention, a user's shell, a run under faults.  What is behind it is taped; what is before it runs.
A tape is a line a question: its name, the error that came instead of an answer, the answer.
"""
