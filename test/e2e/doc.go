// Package e2e has the end-to-end tests, and tests of this program's assumptions about
// real MongoDB servers.
//
//	TestMirror…         recordings, mirrored by the pipeline and compared with
//	                    what the recorded server had; also into a real server
//	TestCopyCorpus…     recordings, copied while they are played
//	TestCopyLive        as TestLive, of a link that begins with a copy
//	TestCopyKilled      a copy that is killed at any of its commands, and resumes
//	TestLive            two sets of three members and many clients, while members
//	                    step down and are killed and the mirror is restarted; with
//	                    access control
//	TestWaitsForTheMirror, TestRolesReadViews
//	                    progress reports; what the roles of docs/privileges.md allow
//	TestDelta…, TestDiff…
//	                    single updates, sent to the server directly
//
// Tests that need a real server are skipped unless the environment names one; see
// internal/testkit/mongotest. They run once for every available server version. Tests that
// run on the embedded set and on real servers use the same code: only the implementation
// of the type cluster and the durations differ.
package e2e
