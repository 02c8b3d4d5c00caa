// Package e2e holds the tests of all of it together, and those that put to a real
// MongoDB what this program believes about it.
//
//	TestMirror…         recordings, mirrored by the pipeline and compared with
//	                    what the recorded server had; also into a real server
//	TestCopyCorpus…     recordings, copied while they are played
//	TestCopyLive        as TestLive, of a link that begins with a copy
//	TestCopyKilled      a copy that is killed at any of its commands, and goes on
//	TestLive            two sets of three members and many clients, while members
//	                    step down and are killed and the mirror is restarted; with
//	                    access control
//	TestWaitsForTheMirror, TestRolesReadViews
//	                    progress reports; what the roles of docs/privileges.md allow
//	TestDelta…, TestDiff…
//	                    single updates, put to the server alone
//
// What needs a real server is skipped unless the environment names one; see
// internal/testkit/mongotest. It runs once for every server version at hand. Where a test
// runs on the embedded set and on real servers it is the same code for both: they
// differ in what is behind the type cluster, and in how long things take.
package e2e
