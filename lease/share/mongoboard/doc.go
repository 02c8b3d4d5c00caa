// Package mongoboard keeps the boards of package share in a database of a MongoDB replica
// set:
//
//	shares        {_id: GROUP, version, term, coordinator, deputies: [MEMBER],
//	               members: {mHEX OF MEMBER: [{p: PARTITION, since, why}]}}
//	sharemembers  {_id: "GROUP/MEMBER", process, limit, leaving, refuses: [{p, n, why}],
//	               joined, beat, drained}
//
// A beat is one findAndModify with a pipeline by $$NOW, the clock of the primary, which alone
// acknowledges it: what an election takes back, the next beat writes. The plan is written with
// majority and read with it, so that a version has one meaning. A member reads its own field of
// the plan, if the version has changed.
//
// The user needs the role readWrite on the database.
package mongoboard
