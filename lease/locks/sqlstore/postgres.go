package sqlstore

import (
	"context"
	"database/sql"

	"github.com/oplogrep/replicator/lease/locks"
)

// postgresNow is the time when it is evaluated, which is after the wait for a row that another
// statement has locked. now() is that of the begin of the transaction.
const postgresNow = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

// postgres is the dialect of PostgreSQL. Each call is one statement.
type postgres struct{ acquiring, renewing, settings string }

func newPostgres(db *sql.DB, n names, now string) *Store {
	fill := n.filler(now)
	return &Store{
		db: db,
		dialect: &postgres{
			acquiring: fill(postgresAcquire),
			renewing:  fill(postgresRenew),
			settings:  postgresSettings,
		},
		tables: n,
		statements: statements{
			create: []string{fill(postgresLocks), fill(postgresPings)},
			release: fill(`UPDATE {locks} SET state = 0, modified = {now}
				WHERE name = $1::text AND id = $2::text AND state <> 0`),
			list: fill(`SELECT {columns}, CASE WHEN {ended} THEN 0 ELSE state END FROM {locks}
				WHERE $1::text IN ('', process) ORDER BY name`),
			clock: fill(postgresClock),
			ping: fill(`INSERT INTO {pings} (process, ping) VALUES ($1::text, {now})
				ON CONFLICT (process) DO UPDATE SET ping = {now}`),
			pinged:     fill(`SELECT ping FROM {pings} WHERE process = $1::text`),
			removePing: fill(`DELETE FROM {pings} WHERE process = $1::text`),
		},
	}
}

// The tables. Names are compared and sorted byte by byte, in any locale of the database. No
// column that changes has an index, so that updates need none.
const (
	postgresLocks = `CREATE TABLE IF NOT EXISTS {locks} (
	name     text COLLATE "C" PRIMARY KEY,
	process  text COLLATE "C" NOT NULL,
	id       text COLLATE "C" NOT NULL,
	term     bigint   NOT NULL,
	renewals bigint   NOT NULL,
	ttl      bigint   NOT NULL,
	expires  bigint   NOT NULL,
	since    bigint   NOT NULL,
	modified bigint   NOT NULL,
	who      text     NOT NULL,
	why      text     NOT NULL,
	state    smallint NOT NULL
)`
	postgresPings = `CREATE TABLE IF NOT EXISTS {pings} (
	process text COLLATE "C" PRIMARY KEY,
	ping    bigint NOT NULL
)`
)

// postgresAcquire has the claim in $1 to $8: name, process, ID, what it overtakes, TTL, who, why, the renewals of
// what it overtakes.
// A record that is not free as of the statement's snapshot is returned as it is then, which
// writes nothing. Otherwise it is inserted or updated. The conditions are those of the row's newest
// version, which no other statement changes meanwhile, and so is the time. There is no row in the
// result if another statement has taken it since the snapshot.
const postgresAcquire = `WITH busy AS (
	SELECT {columns}, state FROM {locks}
	WHERE name = $1::text AND state <> 0 AND NOT ({ended}) AND id <> $3::text AND NOT (id = $4::text AND renewals = $8::bigint)
), taken AS (
	INSERT INTO {locks} AS l ({columns}, state)
	SELECT $1::text, $2::text, $3::text, 1, 0, $5::bigint, CASE WHEN $5::bigint > 0 THEN c.now + $5::bigint ELSE 0 END,
		c.now, c.now, $6::text, $7::text, 2
	FROM (SELECT {now} AS now) AS c WHERE NOT EXISTS (SELECT 1 FROM busy)
	ON CONFLICT (name) DO UPDATE SET (process, id, term, renewals, ttl, expires, since, modified, who, why, state) = (
		WITH c AS (
			SELECT now, l.id = excluded.id AND l.state <> 0 AND NOT (l.ttl > 0 AND l.expires <= now) AS own
			FROM (SELECT {now} AS now) AS t
		)
		SELECT l.process, l.id, l.term, l.renewals + 1, l.ttl, CASE WHEN l.ttl > 0 THEN GREATEST(l.expires, c.now + l.ttl) ELSE 0 END,
			l.since, c.now, l.who, l.why, l.state
		FROM c WHERE c.own
		UNION ALL
		SELECT excluded.process, excluded.id, l.term + 1, 0, excluded.ttl, CASE WHEN excluded.ttl > 0 THEN c.now + excluded.ttl ELSE 0 END,
			c.now, c.now, excluded.who, excluded.why, excluded.state
		FROM c WHERE NOT c.own
	)
	WHERE l.state = 0 OR (l.ttl > 0 AND l.expires <= {now}) OR l.id = $3::text OR (l.id = $4::text AND l.renewals = $8::bigint)
	RETURNING {columns}, state
)
SELECT {columns}, state FROM taken UNION ALL SELECT {columns}, state FROM busy`

// postgresRenew reads the time when it has locked the row: an UPDATE alone would compute the new values before it
// waits for it.
const postgresRenew = `WITH l AS MATERIALIZED (
	SELECT name AS which FROM {locks} WHERE name = $1::text AND id = $2::text AND state <> 0 FOR UPDATE
), c AS MATERIALIZED (
	SELECT which, {now} AS now FROM l
)
UPDATE {locks} SET renewals = renewals + 1, expires = CASE WHEN ttl > 0 THEN GREATEST(expires, now + ttl) ELSE 0 END, modified = now
	FROM c WHERE name = which AND NOT (ttl > 0 AND expires <= now)
	RETURNING {columns}, state`

// postgresClock has as election when the server was started, which no two servers have in
// common to the microsecond, and the timeline, which a promotion changes.
const postgresClock = `SELECT {now}, pg_is_in_recovery(),
	(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text || '-' ||
	CASE WHEN pg_is_in_recovery() THEN '' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END`

// acquire implements dialect.
func (p *postgres) acquire(ctx context.Context, db *sql.DB, c *locks.Claim) (locks.Record, bool, error) {
	return maybe(db.QueryRowContext(ctx, p.acquiring, c.Name, c.Process, c.ID.Hex(), overtakes(c), c.TTL.Milliseconds(), c.Who, c.Why, c.Renewals))
}

// renew implements dialect.
func (p *postgres) renew(ctx context.Context, db *sql.DB, name, id string) (locks.Record, bool, error) {
	return maybe(db.QueryRowContext(ctx, p.renewing, name, id))
}
