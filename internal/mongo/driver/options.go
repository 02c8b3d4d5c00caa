package driver

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"

	"github.com/oplogrep/replicator/internal/filestamp"
)

// Config has the settings of a connection to a deployment. Its fields override the
// connection string; for a zero field, the connection string applies, then the default.
type Config struct {
	// URI is the connection string, mongodb:// or mongodb+srv://.
	URI string
	// Username and Password are the credentials; PasswordFile is a file with the password,
	// whose newline is removed. AuthSource is the database that has the user.
	Username, Password, PasswordFile string
	AuthSource                       string
	// TLS enables TLS. CAFile has the trusted certificate authorities, as PEM;
	// CertificateKeyFile the client's certificate and key. Both enable TLS, too.
	TLS                        bool
	CAFile, CertificateKeyFile string
	// HostMap maps hosts to the addresses to connect to: keys are NAME:PORT or NAME,
	// values HOST:PORT or HOST. A value without a port keeps the port. TLS still expects
	// a certificate for the name.
	HostMap map[string]string
	// AppName is the client's name in the servers' logs, default "replicator".
	AppName string
	// SelectionTimeout is how long a call waits for a primary, default 30 s.
	SelectionTimeout time.Duration
}

const (
	// The connection string may set other values than the defaults.
	defaultConnectTimeout   = 10 * time.Second
	defaultSelectionTimeout = 30 * time.Second
	// defaultHeartbeatInterval is the interval of hello replies of a server without
	// changes. The driver's default is 10 s; but after some errors its monitor waits for
	// the pending hello, and the server is unknown until then.
	defaultHeartbeatInterval = time.Second
)

func (c *Config) validate() error {
	var errs []error
	if c.URI == "" {
		errs = append(errs, errors.New("no connection string is given"))
	}
	if c.Password != "" && c.PasswordFile != "" {
		errs = append(errs, errors.New("a password and a password file are given: give only one"))
	}
	if c.SelectionTimeout < 0 {
		errs = append(errs, fmt.Errorf("selection timeout %s is negative", c.SelectionTimeout))
	}
	for name, address := range c.HostMap {
		if name == "" || address == "" {
			errs = append(errs, fmt.Errorf("host map entry %q=%q: neither side may be empty", name, address))
		}
	}
	return errors.Join(errs...)
}

// Options is a validated Config. It prints without secrets.
type Options struct {
	config    Config             // with its secrets
	read      [2]filestamp.Stamp // the files with secrets, before they were read
	uri       *uri
	selection time.Duration
	hosts     map[string]string // Config.HostMap, its keys in lower case
	// parsed is the driver's result; for mongodb+srv without the hosts.
	parsed *connstring.ConnString
}

// ReadPreference is the read preference of the connection string. This package does not
// use it.
type ReadPreference struct {
	// Mode is primary, primaryPreferred, secondary, secondaryPreferred or nearest.
	Mode string
	// Tags are the tag sets in order of preference, each of which must all match.
	Tags []map[string]string
}

// foreign are options of other drivers' connection strings that have no effect here.
var foreign = []string{"waitqueuetimeoutms", "waitqueuemultiple", "uuidrepresentation"}

// Parse validates a Config. It reads the named files and does not use the network.
// Concerns, retries and operation timeouts in the connection string are ignored. Errors
// never contain a password.
func Parse(c Config) (*Options, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("mongo: configure a connection: %w", err)
	}
	u, err := splitURI(c.URI)
	if err != nil {
		return nil, fmt.Errorf("mongo: parse the connection string: %w", err)
	}
	o := &Options{config: c, uri: u, hosts: map[string]string{}}
	o.read = o.stamps()
	if err := c.apply(u); err != nil {
		return nil, fmt.Errorf("mongo: configure %s: %w", u.text(true), err)
	}
	if c.PasswordFile != "" && o.read[0] == (filestamp.Stamp{}) { // a pipe, which is read once
		o.config.PasswordFile = ""
		o.config.Password, _ = url.PathUnescape(u.password)
	}
	for name, address := range c.HostMap {
		o.hosts[strings.ToLower(name)] = address
	}
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("mongo: parse %s: %w", u.text(true), shield(err, u.secrets()))
	}
	return o, nil
}

// apply adds the settings of a Config to the connection string, so that all settings are
// read from there.
func (c *Config) apply(u *uri) error {
	password, err := c.password()
	if err != nil {
		return err
	}
	u.setLogin(c.Username, password)
	if u.secret && u.user == "" {
		return errors.New("a password is given, but no user")
	}
	for _, s := range []struct{ key, value string }{
		{"authSource", c.AuthSource},
		{"tlsCAFile", c.CAFile},
		{"tlsCertificateKeyFile", c.CertificateKeyFile},
		{"appName", c.AppName},
	} {
		if s.value != "" {
			u.set(s.key, s.value)
		}
	}
	if c.TLS || c.CAFile != "" || c.CertificateKeyFile != "" {
		u.set("tls", "true")
	}
	u.setDefault("appName", "replicator")
	u.setDefault("connectTimeoutMS", milliseconds(defaultConnectTimeout))
	u.setDefault("heartbeatFrequencyMS", milliseconds(defaultHeartbeatInterval))
	if c.SelectionTimeout != 0 {
		u.set("serverSelectionTimeoutMS", milliseconds(c.SelectionTimeout))
	}
	return nil
}

func milliseconds(d time.Duration) string {
	return strconv.FormatInt(max(1, d.Milliseconds()), 10)
}

func (c *Config) password() (*string, error) {
	switch {
	case c.PasswordFile != "":
		b, err := os.ReadFile(c.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("read the password: %w", err)
		}
		text := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
		if text == "" {
			return nil, fmt.Errorf("read the password: %s is empty", c.PasswordFile)
		}
		return &text, nil
	case c.Password != "":
		return &c.Password, nil
	default:
		return nil, nil
	}
}

// check parses the connection string with the driver, and rejects what that accepts
// although it cannot work.
func (o *Options) check() error {
	text := o.uri.direct().text(false)
	client := options.Client().ApplyURI(text)
	if err := client.Validate(); err != nil {
		return err
	}
	var err error
	if o.parsed, err = connstring.ParseAndValidate(text); err != nil {
		return err
	}
	o.selection = defaultSelectionTimeout
	if o.parsed.ServerSelectionTimeout > 0 {
		o.selection = o.parsed.ServerSelectionTimeout
	}
	for key := range o.parsed.UnknownOptions {
		if !slices.Contains(foreign, key) {
			return fmt.Errorf("unknown option %s", key)
		}
	}
	if o.parsed.LoadBalanced {
		return errors.New("loadBalanced is not supported: name the hosts instead")
	}
	for _, c := range o.parsed.Compressors {
		if !slices.Contains([]string{"snappy", "zstd", "zlib"}, c) {
			return fmt.Errorf("compressors: %q is not one of snappy, zstd and zlib", c)
		}
	}
	// A user without a password cannot log in, unless the mechanism gets its secret from
	// elsewhere.
	mechanism := strings.ToUpper(o.parsed.AuthMechanism)
	if o.uri.login && o.parsed.Password == "" &&
		(mechanism == "" || strings.HasPrefix(mechanism, "SCRAM") || mechanism == "PLAIN") {
		return errors.New("a user is given, but no password")
	}
	return nil
}

// stamps are those of the files with the password and with the client certificate, as they are now.
func (o *Options) stamps() (stamps [2]filestamp.Stamp) {
	certificate := o.config.CertificateKeyFile
	if certificate == "" {
		escaped, _ := o.uri.get("tlsCertificateKeyFile")
		certificate, _ = url.QueryUnescape(escaped)
	}
	for i, name := range []string{o.config.PasswordFile, certificate} {
		if name != "" {
			stamps[i], _ = filestamp.Of(name) // who reads the file reports why that cannot be
		}
	}
	return stamps
}

// client returns the driver's options. For mongodb+srv it queries DNS.
func (o *Options) client(d *dialer) (*options.ClientOptions, error) {
	client := options.Client().ApplyURI(o.uri.text(false))
	if err := client.Validate(); err != nil {
		return nil, shield(err, o.uri.secrets())
	}
	client.Timeout = nil
	client.SetDialer(d)
	return client, nil
}

// Hosts returns the hosts of the connection string, as host:port; for mongodb+srv, the
// name to query DNS for.
func (o *Options) Hosts() []string { return slices.Clone(o.parsed.RawHosts) }

// Direct reports whether the connection string has directConnection=true, so that no
// other server than the named one must be used.
func (o *Options) Direct() bool { return o.parsed.DirectConnectionSet && o.parsed.DirectConnection }

// ReadPreference returns the read preference of the connection string, default primary.
func (o *Options) ReadPreference() ReadPreference {
	p := ReadPreference{Mode: "primary", Tags: slices.Clone(o.parsed.ReadPreferenceTagSets)}
	for _, mode := range []string{"primaryPreferred", "secondary", "secondaryPreferred", "nearest"} {
		if strings.EqualFold(o.parsed.ReadPreference, mode) {
			p.Mode = mode
		}
	}
	return p
}

// Place returns the connection string with what says where the deployment is: without its login, and
// without the options that do not matter for that.
func (o *Options) Place() string {
	u := uri{scheme: o.uri.scheme, hosts: o.uri.hosts}
	for _, opt := range o.uri.options {
		switch canonical(opt.key) {
		case canonical("replicaSet"), canonical("tls"), canonical("ssl"), canonical("directConnection"):
			u.options = append(u.options, opt)
		}
	}
	return u.text(true)
}

// String returns the connection string without its secrets.
func (o Options) String() string { return o.uri.text(true) }

// GoString is String.
func (o Options) GoString() string { return o.String() }

// LogValue is String.
func (o Options) LogValue() slog.Value { return slog.StringValue(o.String()) }

// shield returns err, or another error if err contains a secret.
func shield(err error, secrets []string) error {
	text := err.Error()
	for _, s := range secrets {
		if strings.Contains(text, s) {
			return errors.New("the reason is not shown, because it contains the password, or text that may be a password")
		}
	}
	return err
}
