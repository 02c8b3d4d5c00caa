package sqlstore

import (
	"context"
	"database/sql"

	"github.com/oplogrep/replicator/lease/locks"
)

// mysqlNow is the time when the server began with the statement. NOW() is that of the session's time
// zone, in which an hour of each year comes twice; SYSDATE() is another time on a replica.
const mysqlNow = "(TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6)) DIV 1000)"

// mysql is the dialect of MySQL and MariaDB. No statement of MySQL changes a record and returns
// it, so that it is read again, and found to be the claim's by its ID: another acquisition has
// another one.
type mysql struct{ looking, reading, inserting, taking, renewing string }

func newMySQL(db *sql.DB, n names, now string) *Store {
	fill := n.filler(now)
	return &Store{
		db: db,
		dialect: &mysql{
			looking:   fill(`SELECT {columns}, CASE WHEN {ended} THEN 0 ELSE state END FROM {locks} WHERE name = ?`),
			reading:   fill(`SELECT {columns}, state FROM {locks} WHERE name = ?`),
			inserting: fill(mysqlInsert),
			taking:    fill(mysqlTake),
			renewing:  fill(mysqlRenew),
		},
		tables: n,
		statements: statements{
			create:  []string{fill(mysqlLocks), fill(mysqlPings)},
			release: fill(`UPDATE {locks} SET state = 0, modified = {now} WHERE name = ? AND id = ? AND state <> 0`),
			list: fill(`SELECT {columns}, CASE WHEN {ended} THEN 0 ELSE state END FROM {locks}
				WHERE ? IN ('', process) ORDER BY name`),
			clock:      fill(mysqlClock),
			ping:       fill(`INSERT INTO {pings} (process, ping) VALUES (?, {now}) ON DUPLICATE KEY UPDATE ping = {now}`),
			pinged:     fill(`SELECT ping FROM {pings} WHERE process = ?`),
			removePing: fill(`DELETE FROM {pings} WHERE process = ?`),
		},
	}
}

// The tables. Names are bytes: MySQL's collations take "a" and "a " for the same.
const (
	mysqlLocks = `CREATE TABLE IF NOT EXISTS {locks} (
	name     VARBINARY(1000) NOT NULL PRIMARY KEY,
	process  VARBINARY(1000) NOT NULL,
	id       VARBINARY(24)   NOT NULL,
	term     BIGINT          NOT NULL,
	renewals BIGINT          NOT NULL,
	ttl      BIGINT          NOT NULL,
	expires  BIGINT          NOT NULL,
	since    BIGINT          NOT NULL,
	modified BIGINT          NOT NULL,
	who      VARBINARY(1000) NOT NULL,
	why      VARBINARY(8000) NOT NULL,
	state    SMALLINT        NOT NULL
) ENGINE = InnoDB`
	mysqlPings = `CREATE TABLE IF NOT EXISTS {pings} (
	process VARBINARY(1000) NOT NULL PRIMARY KEY,
	ping    BIGINT          NOT NULL
) ENGINE = InnoDB`
)

// mysqlInsert changes nothing if there is a record.
const mysqlInsert = `INSERT INTO {locks} ({columns}, state)
	VALUES (?, ?, ?, 1, 0, ?, CASE WHEN ? > 0 THEN {now} + ? ELSE 0 END, {now}, {now}, ?, ?, 2)
	ON DUPLICATE KEY UPDATE name = name`

// mysqlTake and mysqlRenew assign nothing that depends on a column that was assigned before: the server would take
// the new value.
const mysqlTake = `UPDATE {locks}
	SET process = ?, id = ?, term = term + 1, renewals = 0, ttl = ?, expires = CASE WHEN ? > 0 THEN {now} + ? ELSE 0 END,
		since = {now}, modified = {now}, who = ?, why = ?, state = 2
	WHERE name = ? AND (state = 0 OR ({ended}) OR (id = ? AND renewals = ?))`

// mysqlRenew changes the row if it finds it: whether a server counts the rows that it found
// or those that it changed makes no difference.
const mysqlRenew = `UPDATE {locks}
	SET renewals = renewals + 1, expires = CASE WHEN ttl > 0 THEN GREATEST(expires, {now} + ttl) ELSE 0 END, modified = {now}
	WHERE name = ? AND id = ? AND state <> 0 AND NOT ({ended})`

// mysqlClock has as election which server answers, and when it was started: the server
// subtracts the same number when it computes its uptime from the time of the statement.
const mysqlClock = `SELECT {now}, CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF'),
	CONCAT_WS('-', @@hostname, @@port, @@server_id, UNIX_TIMESTAMP() - CAST(variable_value AS SIGNED))
	FROM /*!50708 performance_schema.global_status */ /*M!100000 information_schema.global_status */
	WHERE LOWER(variable_name) = 'uptime'`

// acquire implements dialect. The write is one statement, with its conditions. It is found to
// have had an effect by the record's ID.
func (m *mysql) acquire(ctx context.Context, db *sql.DB, c *locks.Claim) (locks.Record, bool, error) {
	now, found, err := maybe(db.QueryRowContext(ctx, m.looking, c.Name))
	if err != nil {
		return locks.Record{}, false, err
	}
	ttl := c.TTL.Milliseconds()
	switch {
	case !found:
		_, err = db.ExecContext(ctx, m.inserting, c.Name, c.Process, c.ID.Hex(), ttl, ttl, ttl, c.Who, c.Why)
	case now.IsLocked() && now.ID == c.ID:
		return m.renew(ctx, db, c.Name, c.ID.Hex())
	case !now.IsLocked(), now.ID == c.Overtake && now.Renewals == c.Renewals:
		_, err = db.ExecContext(ctx, m.taking, c.Process, c.ID.Hex(), ttl, ttl, ttl, c.Who, c.Why, c.Name, overtakes(c), c.Renewals)
	default:
		return now, true, nil
	}
	if err != nil {
		return locks.Record{}, false, err
	}
	return m.read(ctx, db, c.Name, c.ID.Hex())
}

// renew implements dialect.
func (m *mysql) renew(ctx context.Context, db *sql.DB, name, id string) (locks.Record, bool, error) {
	result, err := db.ExecContext(ctx, m.renewing, name, id)
	if err != nil {
		return locks.Record{}, false, err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return locks.Record{}, false, err
	}
	return m.read(ctx, db, name, id)
}

// read returns the record, if it is locked with that ID.
func (m *mysql) read(ctx context.Context, db *sql.DB, name, id string) (locks.Record, bool, error) {
	now, found, err := maybe(db.QueryRowContext(ctx, m.reading, name))
	return now, found && now.IsLocked() && now.ID.Hex() == id, err
}
