// Package mongostore keeps the locks of package locks in a database of a MongoDB replica
// set, in the collections locks and lockpings, as config.locks and config.lockpings have
// them:
//
//	locks      {_id: NAME, state: 0|2, process, ts: LOCK ID, when, who, why,
//	            term, termDuration, ttl, expires, modified}
//	lockpings  {_id: PROCESS, ping: DATE}
//
// Each change is one findAndModify with a pipeline, whose conditions use $$NOW, the clock of
// the primary. It waits for a majority, so that no election takes it back: a secondary that
// lags delays it, and a set without a majority grants, renews and releases nothing. The
// clock and the election are those of the primary's hello. Reads have read concern majority.
//
// The user needs the role readWrite on the database.
package mongostore
