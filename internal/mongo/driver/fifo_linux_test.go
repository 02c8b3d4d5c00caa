package driver_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/oplogrep/replicator/internal/mongo/driver"
)

// TestPasswordOfPipe: a password that came through a pipe, or from a terminal, is not read again: nobody may ever write another one,
// and every login would wait for that.
func TestPasswordOfPipe(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "password")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() { written <- os.WriteFile(pipe, []byte("first-password"), 0) }()
	_, cert := certificates(t)
	_, renewed := certificates(t)
	file := filepath.Join(t.TempDir(), "client.pem")
	write(t, file, pemOf(t, cert))
	next, err := driver.Logins(parse(t, driver.Config{URI: "mongodb://ann@h", PasswordFile: pipe, CertificateKeyFile: file}), "admin")
	if err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	done := make(chan bool, 1)
	go func() {
		before, err := next()
		if err == nil {
			err = os.WriteFile(file, append(pemOf(t, renewed), '\n'), 0o600)
		}
		after, e := next()
		done <- err == nil && e == nil && before != nil && after != nil
	}()
	select {
	case ok := <-done:
		if !ok {
			t.Error("there is no login")
		}
	case <-within(t).Done():
		t.Error("the login waits for another password")
	}
}
