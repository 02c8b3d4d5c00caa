package driver_test

import (
	"os"
	"path/filepath"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/driver"
)

// logins returns the files with the password and the authority of a login by mongodb+srv for which DNS names the database
// admin, and what begins the login of a new connection.
func logins(t *testing.T) (password, ca string, login func() bson.Raw) {
	t.Helper()
	password = filepath.Join(t.TempDir(), "password")
	write(t, password, []byte("first-password"))
	ca, _ = certificates(t)
	next, err := driver.Logins(parse(t, driver.Config{URI: "mongodb+srv://ann@a.b.example/app", PasswordFile: password, CAFile: ca}), "admin")
	if err != nil {
		t.Fatal(err)
	}
	return password, ca, func() bson.Raw {
		t.Helper()
		first, err := next()
		if err != nil {
			t.Fatal(err)
		}
		return first
	}
}

// TestSourceOfReplacedPassword: with mongodb+srv, a password that is read again is for the database that DNS has named, not
// for that of the connection string.
func TestSourceOfReplacedPassword(t *testing.T) {
	t.Parallel()
	password, _, login := logins(t)
	for _, text := range []string{"first-password", "another-password"} {
		write(t, password, []byte(text))
		if db, _ := login().Lookup("db").StringValueOK(); db != "admin" {
			t.Errorf("with %s, the login is that of the database %q", text, db)
		}
	}
}

// TestUnusableUntilLater: new credentials that could not be used for something other than their own file, as an authority that
// was being replaced as well, are used as soon as they can be, although that file has not changed since.
func TestUnusableUntilLater(t *testing.T) {
	t.Parallel()
	password, ca, login := logins(t)
	text, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	write(t, ca, nil)
	write(t, password, []byte("another-password"))
	if first := login(); first != nil {
		t.Fatalf("the login begins with %s, although its files cannot be used", first)
	}
	write(t, ca, text)
	if login() == nil {
		t.Error("the new password is not used")
	}
}
