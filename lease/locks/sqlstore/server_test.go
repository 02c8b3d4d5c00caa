package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/locks/sqlstore"
)

// kind is a kind of server.
type kind struct {
	name, driver string
	// env is the variable that names a server, binary the program looked for otherwise, also in
	// folders.
	env, binary, folders string
	// owner is the account that runs it if the test is root's, as it refuses to be root's.
	owner string
	// stop makes it end at once.
	stop syscall.Signal
	// prepare makes its data, command returns how it is started, dsn how it is connected to.
	prepare func(s *server) *exec.Cmd
	command func(s *server) *exec.Cmd
	dsn     func(s *server) string
	open    func(*sql.DB, sqlstore.Config) (*sqlstore.Store, error)
	// odd are settings of a session, isolation sets its isolation level.
	odd       [][2]string
	isolation string
	// pid returns the ID of a session, waiting how many wait for it. Late: the clock is that of after the wait.
	pid, waiting string
	late         bool
}

var kinds = []*kind{
	{
		name: "PostgreSQL", driver: "pgx", env: "POSTGRES_DSN", binary: "postgres", folders: "/usr/lib/postgresql/*/bin:/usr/pgsql-*/bin", owner: "postgres", stop: syscall.SIGQUIT,
		prepare: func(s *server) *exec.Cmd {
			return exec.Command(filepath.Join(filepath.Dir(s.binary), "initdb"), "--auth=trust", "--username=postgres", "--no-sync", "--encoding=UTF8", "--locale=C", "-D", s.data())
		},
		command: func(s *server) *exec.Cmd {
			return exec.Command(s.binary, "-D", s.data(), "-k", s.dir, "-c", "listen_addresses=", "-c", "shared_buffers=4MB",
				"-c", "max_connections=60", "-c", "max_wal_size=64MB", "-c", "autovacuum_naptime=5s")
		},
		dsn:       func(s *server) string { return "host=" + s.dir + " user=postgres dbname=postgres" },
		open:      sqlstore.Postgres,
		odd:       [][2]string{{"timezone", "Pacific/Chatham"}, {"DateStyle", "SQL"}, {"default_query_exec_mode", "simple_protocol"}},
		isolation: "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL ",
		pid:       "SELECT pg_backend_pid()",
		waiting:   "SELECT count(*) FROM pg_stat_activity WHERE $1::int = ANY(pg_blocking_pids(pid))",
		late:      true,
	},
	{
		name: "MariaDB", driver: "mysql", env: "MYSQL_DSN", binary: "mariadbd", folders: "/usr/sbin:/usr/libexec", owner: "mysql", stop: syscall.SIGKILL,
		// Without the tables of rights it needs no others.
		prepare: func(s *server) *exec.Cmd { return exec.Command("mkdir", "-p", filepath.Join(s.data(), "locks")) },
		command: func(s *server) *exec.Cmd {
			return exec.Command(s.binary, "--no-defaults", "--datadir="+s.data(), "--socket="+filepath.Join(s.dir, "s"), "--skip-networking",
				"--skip-grant-tables", "--tmpdir="+s.dir, "--pid-file="+filepath.Join(s.dir, "pid"), "--innodb-buffer-pool-size=8M", "--innodb-log-file-size=8M",
				"--max-connections=60", "--performance-schema=OFF")
		},
		dsn:  func(s *server) string { return "root@unix(" + filepath.Join(s.dir, "s") + ")/locks" },
		open: sqlstore.MySQL,
		odd: [][2]string{
			{"time_zone", "'-09:30'"}, {"clientFoundRows", "true"}, {"interpolateParams", "true"}, {"parseTime", "true"}, {"charset", "latin1"}, {"sql_mode", "'ANSI_QUOTES'"},
		},
		isolation: "SET SESSION TRANSACTION ISOLATION LEVEL ",
		pid:       "SELECT CONNECTION_ID()",
		waiting: "SELECT count(*) FROM /*!80000 performance_schema.data_lock_waits w JOIN performance_schema.threads t ON t.thread_id = w.blocking_thread_id WHERE t.processlist_id = */" +
			" /*M! information_schema.innodb_lock_waits w JOIN information_schema.innodb_trx t ON t.trx_id = w.blocking_trx_id WHERE t.trx_mysql_thread_id = */ ?",
	},
}

// eachKind runs a test on a server of each kind, and skips it for those that are absent.
func eachKind(t *testing.T, test func(t *testing.T, s *server)) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			test(t, k.shared(t))
		})
	}
}

// shared returns the server of this kind that the tests share.
func (k *kind) shared(t *testing.T) *server {
	t.Helper()
	if os.Getenv(k.env) == "" {
		k.find(t)
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.shared == nil {
		all.shared = map[*kind]*server{}
	}
	if all.shared[k] == nil {
		s := &server{kind: k, url: os.Getenv(k.env)}
		if s.url == "" {
			s = k.start(t)
			all.ends = append(all.ends, s.end)
		}
		s.db = s.connect(t)
		all.ends = append(all.ends, func() { _ = s.db.Close() })
		s.await(t)
		all.shared[k] = s
	}
	return all.shared[k]
}

// find returns the path of the server's binary.
func (k *kind) find(t *testing.T) string {
	t.Helper()
	found, _ := exec.LookPath(k.binary)
	for folder := range strings.SplitSeq(k.folders, ":") {
		if paths, _ := filepath.Glob(filepath.Join(folder, k.binary)); found == "" && len(paths) > 0 {
			found = slices.Max(paths)
		}
	}
	switch {
	case found != "":
	case os.Getenv("REQUIRE_SQL") != "":
		t.Fatalf("REQUIRE_SQL is set, and there is no %s: install it, or set %s", k.binary, k.env)
	default:
		t.Skipf("needs %s: install it, or set %s", k.name, k.env)
	}
	return found
}

// start starts a server that is not shared. It ends with the test process, or before by end.
func (k *kind) start(t *testing.T) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "sql") //nolint:usetesting // it outlives the test
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			_ = os.RemoveAll(dir)
		}
	}()
	s := &server{kind: k, binary: k.find(t), dir: dir}
	if err := s.own(dir); err != nil {
		t.Fatal(err)
	}
	cmd := k.prepare(s)
	cmd.SysProcAttr, cmd.Dir = s.attributes(), dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	s.url = k.dsn(s)
	s.run(t)
	return s
}

// server is one server.
type server struct {
	*kind
	binary, dir, url string
	db               *sql.DB
	credential       *syscall.Credential

	mu    sync.Mutex // guards the rest
	cmd   *exec.Cmd
	ended chan struct{}
}

func (s *server) data() string { return filepath.Join(s.dir, "data") }

// own gives the folder to the account that runs the server, if it is not this one.
func (s *server) own(dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	account, err := user.Lookup(s.owner)
	if err != nil {
		return err
	}
	uid, err1 := strconv.ParseUint(account.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(account.Gid, 10, 32)
	s.credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return errors.Join(err1, err2, os.Chown(dir, int(uid), int(gid)))
}

// run starts the process and waits until it answers.
func (s *server) run(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close() //nolint:errcheck // the process has a handle of its own
	cmd, ended, began := s.command(s), make(chan struct{}), make(chan error)
	cmd.Stdout, cmd.Stderr, cmd.Dir, cmd.SysProcAttr = log, log, s.dir, s.attributes()
	all.running.Go(func() {
		runtime.LockOSThread() // with the thread that started it the process ends
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := cmd.Start()
		began <- err
		if err == nil {
			_ = cmd.Wait()
		}
	})
	if err := <-began; err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	s.mu.Lock()
	s.cmd, s.ended = cmd, ended
	s.mu.Unlock()
	db := s.connect(t)
	defer db.Close() //nolint:errcheck // nothing was begun
	for {
		err := db.PingContext(t.Context())
		if err == nil {
			return
		}
		select {
		case <-ended:
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("%s ended: %v\n%s", cmd, err, text)
		case <-t.Context().Done():
			t.Fatal(err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// await waits until a server that others have started answers.
func (s *server) await(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := s.db.PingContext(ctx)
	for err != nil && ctx.Err() == nil {
		<-time.After(100 * time.Millisecond)
		err = s.db.PingContext(ctx)
	}
	if err != nil {
		t.Fatalf("connect to %s: %v", s.url, err)
	}
}

// kill kills the process, and those that it has started end with it.
func (s *server) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.cmd.Process.Signal(s.stop) // it may have ended
	<-s.ended
}

// end ends the server, and removes its data.
func (s *server) end() {
	s.kill()
	_ = os.RemoveAll(s.dir)
}

// connect opens a handle, with further settings of its sessions.
func (s *server) connect(t *testing.T, settings ...[2]string) *sql.DB {
	t.Helper()
	dsn := s.url
	for _, setting := range settings {
		switch {
		case s.driver == "pgx" && !strings.Contains(dsn, "://"):
			dsn += " " + setting[0] + "=" + setting[1]
		case strings.Contains(dsn, "?"):
			dsn += "&" + setting[0] + "=" + url.QueryEscape(setting[1])
		default:
			dsn += "?" + setting[0] + "=" + url.QueryEscape(setting[1])
		}
	}
	db := must.Get(sql.Open(s.driver, dsn))(t)
	db.SetMaxOpenConns(20)
	db.SetMaxIdleConns(20)
	return db
}

// all has what the tests share, and what ends it.
var all struct {
	mu      sync.Mutex // guards shared, ends
	shared  map[*kind]*server
	ends    []func()
	running sync.WaitGroup
	tables  atomic.Int64
}

// store returns a store in tables of its own, which are dropped when the test ends.
func (s *server) store(t *testing.T) *sqlstore.Store {
	t.Helper()
	store, _ := s.tables(t)
	return store
}

func (s *server) tables(t *testing.T) (*sqlstore.Store, sqlstore.Config) {
	t.Helper()
	prefix := fmt.Sprintf("t%d_%d", os.Getpid(), all.tables.Add(1))
	cfg := sqlstore.Config{Locks: prefix + "_l", Pings: prefix + "_p"}
	store, err := s.open(s.db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, err := s.db.ExecContext(context.Background(), "DROP TABLE "+cfg.Locks+", "+cfg.Pings)
		if err != nil {
			t.Error(err)
		}
	})
	return store, cfg
}
