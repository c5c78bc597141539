"""Every fault in every phase of a run, on real systemd hosts: the host comes back, nothing is lost.

points    where a run stands still: the phases
gated     `autotune` itself, standing still at one of them
faults    what happens there, and how it is undone
cells     which phase meets which fault; the cells of CI
cell      one cell: run, fault, and everything that must hold afterwards
matrix    the results file and the printed matrix
"""
