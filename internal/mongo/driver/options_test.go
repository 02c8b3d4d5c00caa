package driver_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/oplogrep/replicator/internal/mongo/driver"
)

func TestParse(t *testing.T) {
	t.Parallel()
	o := parse(t, driver.Config{URI: "mongodb://ann:s%40crt@Db1.example.com,[::1]:27018,%2Ftmp%2Fm-27017.sock/app?replicaSet=rs0&authSource=admin" +
		"&readPreference=secondarypreferred&readPreferenceTags=dc:ny,rack:1&readPreferenceTags=&maxStalenessSeconds=120" +
		"&retryWrites=true&w=majority&waitQueueTimeoutMS=1"})
	if diff := cmp.Diff([]string{"Db1.example.com", "[::1]:27018", "/tmp/m-27017.sock"}, o.Hosts()); diff != "" {
		t.Error(diff)
	}
	want := driver.ReadPreference{
		Mode: "secondaryPreferred", Tags: []map[string]string{{"dc": "ny", "rack": "1"}, {}},
	}
	if diff := cmp.Diff(want, o.ReadPreference()); diff != "" {
		t.Error(diff)
	}
	if p := parse(t, driver.Config{URI: "mongodb://h"}).ReadPreference(); p.Mode != "primary" || p.Tags != nil {
		t.Errorf("the default read preference is %v", p)
	}
	srv := parse(t, driver.Config{URI: "mongodb+srv://ann:secret@cluster0.example.com/?srvServiceName=x&retryWrites=true"})
	if !slices.Equal(srv.Hosts(), []string{"cluster0.example.com"}) {
		t.Errorf("hosts are %v", srv.Hosts())
	}
}

// TestPrecedence: fields of Config override the connection string.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("p w/+%\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := parse(t, driver.Config{
		URI:      "mongodb://bob:old@h:1/?heartbeatIntervalMS=5000&serverSelectionTimeoutMS=1&appname=x&authSource=a&ssl=true",
		Username: "ann", PasswordFile: file, AuthSource: "b c", TLS: true, AppName: "mine",
		SelectionTimeout: 2 * time.Second,
	})
	want := "mongodb://ann:***@h:1/?heartbeatIntervalMS=5000&authSource=b+c&appName=mine&tls=true&connectTimeoutMS=10000&serverSelectionTimeoutMS=2000"
	if o.String() != want {
		t.Errorf("the options are\n%s, want\n%s", o, want)
	}
}

// TestParseRefuses: each error has the reason, and none shows a password.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	noKey := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(noKey, []byte("hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		uri    string
		config driver.Config
		want   string
	}{
		{"", driver.Config{}, "no connection string"},
		{"hunter2", driver.Config{}, "does not begin with mongodb://"},
		{"http://u:hunter2@h", driver.Config{}, "does not begin with mongodb://"},
		{"mongodb://", driver.Config{}, "host 1: it is empty"},
		{"mongodb://u:hunter2@", driver.Config{}, "host 1: it is empty"},
		{"mongodb://u:hunter2@h,,i", driver.Config{}, "host 2: it is empty"},
		{"mongodb://u:hunter2@h:x", driver.Config{}, "host 1: its port"},
		{"mongodb://u:hunter2@h:0", driver.Config{}, "host 1: its port"},
		{"mongodb://u:hunter2@h:70000", driver.Config{}, "host 1: its port"},
		{"mongodb://u:hunter2@::1", driver.Config{}, "host 1: invalid name"},
		{"mongodb://u:hunter2@[::1", driver.Config{}, "host 1: its brackets"},
		{"mongodb://u:hunter2@x@h", driver.Config{}, "percent-encoded"},
		{"mongodb://u:hunter2:x@h", driver.Config{}, "percent-encoded"},
		{"mongodb://u:hunter2/x@h", driver.Config{}, "percent-encoded"},
		{"mongodb://u:hunter2?x@h", driver.Config{}, "percent-encoded"},
		{"mongodb://u:1/hunter2@h", driver.Config{}, "percent-encoded"},
		{"mongodb://u:1?a=hunter2@h", driver.Config{}, "percent-encoded"},
		{"mongodb://u:hunter2%zz@h", driver.Config{}, "the password has a %"},
		{"mongodb://hunter2%:x@h", driver.Config{}, "the user name has a %"},
		{"mongodb://u:hunter2@h/d%b", driver.Config{}, "the database has a %"},
		{"mongodb://:hunter2@h", driver.Config{}, "but no user"},
		{"mongodb://u@h", driver.Config{}, "but no password"},
		{"mongodb://u:@h", driver.Config{}, "but no password"},
		{"mongodb://u:hunter2@h/?x", driver.Config{}, "not of the form"},
		{"mongodb://u:hunter2@h/?tls=%zz", driver.Config{}, "not of the form"},
		{"mongodb://u:hunter2@h/?replicSet=rs0", driver.Config{}, "unknown option replicset"},
		{"mongodb://u:hunter2@h/?tls=maybe", driver.Config{}, "invalid value"},
		{"mongodb://u:hunter2@h/?tls=hunter2", driver.Config{}, "is not shown"},
		{"mongodb://u:hunter2@h/?authMechanism=NONE", driver.Config{}, "auth mechanism"},
		{"mongodb://u:hunter2@h/?readPreference=best", driver.Config{}, "read preference"},
		{"mongodb://u:hunter2@h/?compressors=lzma", driver.Config{}, "lzma"},
		{"mongodb://u:hunter2@h/?loadBalanced=true", driver.Config{}, "name the hosts"},
		{"mongodb://u:hunter2@h,i/?directConnection=true", driver.Config{}, "direct connection"},
		{"mongodb://u:hunter2@h/?heartbeatFrequencyMS=1", driver.Config{}, "heartbeat"},
		{"mongodb+srv://u:hunter2@a.b.c,d.e.f", driver.Config{}, "one name"},
		{"mongodb+srv://u:hunter2@a.b.c:1", driver.Config{}, "without a port"},
		{"mongodb://h/?tlsCAFile=/none&tlsCertificateKeyFilePassword=hunter2", driver.Config{}, "/none"},
		{"mongodb://h", driver.Config{Username: "u", PasswordFile: "/none"}, "/none"},
		{"mongodb://h", driver.Config{Username: "u", PasswordFile: empty}, "is empty"},
		{"mongodb://h", driver.Config{Username: "u"}, "but no password"},
		{"mongodb://h", driver.Config{Password: "hunter2"}, "but no user"},
		{"mongodb://h", driver.Config{Username: "u", Password: "hunter2", PasswordFile: "x"}, "only one"},
		{"mongodb://h", driver.Config{CAFile: "/none"}, "/none"},
		{"mongodb://h", driver.Config{CertificateKeyFile: noKey}, ""},
		{"mongodb://h", driver.Config{SelectionTimeout: -1}, "selection timeout"},
	}
	for _, test := range tests {
		test.config.URI = test.uri
		_, err := driver.Parse(test.config)
		switch {
		case err == nil:
			t.Errorf("%q %v is taken", test.uri, test.config)
		case !strings.Contains(err.Error(), test.want):
			t.Errorf("%q: the error is %q, want %q", test.uri, err, test.want)
		case strings.Contains(err.Error(), "hunter"):
			t.Errorf("%q: the error shows the password: %v", test.uri, err)
		}
	}
}

// TestRedaction: nothing that prints options prints secrets.
func TestRedaction(t *testing.T) {
	t.Parallel()
	o := parse(t, driver.Config{URI: "mongodb://ann:hunter2%2F@h/?authSource=x&authMechanism=MONGODB-AWS&authSource=$external" +
		"&authMechanismProperties=AWS_SESSION_TOKEN:hunter2&tlsCertificateKeyFilePassword=hunter2"})
	const key = "options"
	var text bytes.Buffer
	slog.New(slog.NewTextHandler(&text, nil)).Info("open", key, o, key, *o)
	slog.New(slog.NewJSONHandler(&text, nil)).Info("open", key, o, key, *o)
	fmt.Fprintf(&text, "%v %+v %#v %s %q %v %+v %#v %v %x", o, o, o, o, o, *o, *o, *o, []*driver.Options{o}, o)
	fmt.Fprint(&text, errors.New(o.String()))
	if strings.Contains(text.String(), "hunter") {
		t.Errorf("a password shows:\n%s", &text)
	}
	if !strings.Contains(o.String(), "mongodb://ann:***@h/") {
		t.Errorf("the options are %s", o)
	}
}

// FuzzParse: no connection string makes Parse panic, and no error shows the password.
func FuzzParse(f *testing.F) {
	f.Add("mongodb://u:", "hunter2", "@h:1,i/db?tls=true&authSource=x")
	f.Add("mongodb+srv://u:", "hunter/2", "@h.i.j/?x=y")
	f.Add("mongodb://u:", "a@b:c/d?e&f", "@h/")
	f.Fuzz(func(t *testing.T, before, password, after string) {
		o, err := driver.Parse(driver.Config{URI: before + password + after})
		secret := len(password) >= 6 && !strings.Contains(before+after, password) && strings.HasPrefix(before, "mongodb://u:") &&
			strings.HasPrefix(after, "@")
		if err != nil && secret && strings.Contains(err.Error(), password) && !strings.ContainsAny(before[12:], "@/?") {
			t.Errorf("the error shows the password: %v", err)
		}
		if o != nil && secret && !strings.ContainsAny(before[12:]+password, "@/?") && strings.Contains(o.String(), password) {
			t.Errorf("the options show the password: %v", o)
		}
	})
}
