// Package share spreads pieces of work, the partitions of a group, over the processes that
// are its members: each partition is worked on by one of them at any moment.
//
// # The problem
//
// A list of jobs and a few processes to run them: each job once, all of them always, no process
// with much more than another. Processes start, stop, are suspended and die; a list grows. If
// one leader tells the others what to do, the program stops with its leader, and runs a job
// twice when the leader takes a process for dead that is not.
//
// # How it works
//
//	members ── beat ──────────▶ board ◀── reads members, writes the plan ── coordinator
//	   │ ◀── own partitions ─────┘                                        (one of the members,
//	   │                                                                   by a lease)
//	   └── lease of each partition ──▶ store of package locks
//
// Each member records on the [Board] that it is alive, and reads its assignments there. One of them is the
// coordinator, by a lease. It only assigns: it reads which members are alive, and writes the plan, one
// document that it replaces by compare-and-set, and only if no newer coordinator has. A member works on a
// partition only while it has the lease of that partition, by [locks.Elect.Lock]. So the coordinator may be wrong, late, absent or one of two: partitions wait, or stay where
// they are, but no two members work on one.
//
//	assigned ──▶ waits for the lease ──▶ works ◀──▶ waits after a failure
//	                     ▲                 │
//	                     └── lease lost ◀──┤
//	                                       └──▶ assigned to another: stops, releases the lease
//
// The coordinator takes a member for dead when its beats have stopped for three times [Config.Every]
// by the store's clock, and this coordinator has seen no beat for twice that time. The second limit is a
// whole TTL if the coordinator could not read meanwhile, or has been suspended. Beats that
// it has not seen change for three times Every count as stopped, whatever the store's clock says. The
// clocks of the members do not matter.
//
// # Properties
//
// With the default times, the store up, and calls that take little time:
//
//   - Exclusive: at any moment of the store's clock at most one member has the lease of a
//     partition, and the context of its work ends before another gets it. The storage that the work writes to must
//     check the term, as for package locks, to refuse writes sent before a suspension.
//   - Even: the members that are neither drained nor refuse partitions have equal numbers of
//     partitions, or one more or less, but for their limits.
//   - Prompt: the partitions of a member that died run elsewhere within TTL + 3 s, also if it
//     was the coordinator; of one that shut down, and those that are added, within 3 times Every.
//     A death that follows an outage of the store takes up to a TTL longer.
//   - Stable: a member that joins N others moves at most ⌈P/N⌉ of P partitions, all to itself; more
//     only if limits of others left it more.
//     One that leaves, dies or is drained moves its own. Otherwise none moves, but those that a
//     member refuses.
//   - Limits: a member never has more partitions than [Config.Limit]. A partition for which no member has room waits.
//   - Drain: the partitions of a member that is drained move as far as others have room; the
//     rest continues where it is. It is drained until that is ended, also when it is started again.
//   - Failures: a work that fails is tried again after 1 s, 2 s, … 1 min, by the same member
//     with the same term. After the fifth failure in a row the member refuses that partition for ten minutes, twice as
//     long each further time up to a day, and it moves to one that does not. A member that refuses partitions gets no others for them, so
//     one on which everything fails ends up without partitions, if the others have room. A partition that all refuse stays.
//   - Without the store, or without a coordinator, works go on until their leases end; without
//     a coordinator alone they are renewed.
//
// # Cost
//
// A member costs 30 small writes per minute, its beats, which the primary alone acknowledges, 30 reads
// of an indexed document that return nothing while the plan stays, and 6 attempts to become the
// coordinator; the three deputies make 75. A partition costs what its lease does: 30 writes per
// minute that a majority acknowledges. The coordinator reads the members 30 times per minute, and writes the plan
// when it changes; then each member reads its own part.
//
// The plan is one document of at most 16 MB: a group has at most [MaxPartitions].
package share
