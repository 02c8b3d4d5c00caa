package driver

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"
)

// Config says how to reach a deployment. What is set here goes before what the
// connection string says. The zero value of a field leaves it to that, and then to
// the default.
type Config struct {
	// URI is the connection string, mongodb:// or mongodb+srv://.
	URI string
	// Username and Password are the login; PasswordFile holds the password instead,
	// without the line's end. AuthSource is the database that knows the user.
	Username, Password, PasswordFile string
	AuthSource, AuthMechanism        string
	// TLS asks for TLS. CAFile holds the authorities to believe, in PEM form;
	// CertificateKeyFile our certificate and its key. Both ask for TLS too.
	TLS                        bool
	CAFile, CertificateKeyFile string
	// HostMap says where to connect to in place of a host: keys are NAME:PORT or NAME,
	// values HOST:PORT or HOST. Where a port is missing it stays what it was. TLS still
	// wants a certificate for the name.
	HostMap map[string]string
	// AppName is what servers write to their logs, default "replicator".
	AppName string
	// Compressors are tried in this order: snappy, zstd, zlib. Default none.
	Compressors []string
	// ServerAPI is the API version to declare with each command, "1" or none.
	ServerAPI string
	// ConnectTimeout is for opening one connection, default 10 s.
	ConnectTimeout time.Duration
	// SelectionTimeout is how long a call waits for a primary, default 30 s.
	SelectionTimeout time.Duration
	// HeartbeatInterval is how often a server says hello that has nothing to report,
	// default 1 s, at least 500 ms. The driver has 10 s; but after some errors its
	// monitor still waits for a hello, and the server is unknown until that comes.
	HeartbeatInterval time.Duration
}

const (
	defaultConnectTimeout    = 10 * time.Second
	defaultSelectionTimeout  = 30 * time.Second
	defaultHeartbeatInterval = time.Second
)

func (c *Config) validate() error {
	var errs []error
	if c.URI == "" {
		errs = append(errs, errors.New("no connection string is given"))
	}
	if c.Password != "" && c.PasswordFile != "" {
		errs = append(errs, errors.New("a password and a file with the password are given: one is enough"))
	}
	if c.ServerAPI != "" && c.ServerAPI != string(options.ServerAPIVersion1) {
		errs = append(errs, fmt.Errorf("server API version %q is not known: 1 is the only one", c.ServerAPI))
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{{"connect timeout", c.ConnectTimeout}, {"selection timeout", c.SelectionTimeout}, {"heartbeat interval", c.HeartbeatInterval}} {
		if d.d < 0 {
			errs = append(errs, fmt.Errorf("%s %s is negative", d.name, d.d))
		}
	}
	for name, address := range c.HostMap {
		if name == "" || address == "" {
			errs = append(errs, fmt.Errorf("host %q stands for %q: neither may be empty", address, name))
		}
	}
	return errors.Join(errs...)
}

// Options are a Config that holds together. They print without secrets.
type Options struct {
	uri       *uri
	api       string
	selection time.Duration
	hosts     map[string]string // Config.HostMap, its keys in lower case
	// parsed is what the driver read; for mongodb+srv without the hosts.
	parsed *connstring.ConnString
}

// ReadPreference is which members are to be read from, as the connection string
// says. Nothing here acts on it.
type ReadPreference struct {
	// Mode is primary, primaryPreferred, secondary, secondaryPreferred or nearest.
	Mode string
	// Tags are the tag sets in order of preference, each of which must all match.
	Tags []map[string]string
	// MaxStaleness is zero where none is given.
	MaxStaleness time.Duration
}

// foreign are options of connection strings that other drivers know, and that
// make no difference here.
var foreign = []string{"waitqueuetimeoutms", "waitqueuemultiple", "uuidrepresentation"}

// Parse checks a Config. It reads the files that are named and uses no network.
// Concerns, retries and operation timeouts of the connection string are no error
// and have no effect. No error shows a password.
func Parse(c Config) (*Options, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("mongo: configure a connection: %w", err)
	}
	u, err := splitURI(c.URI)
	if err != nil {
		return nil, fmt.Errorf("mongo: parse the connection string: %w", err)
	}
	if err := c.apply(u); err != nil {
		return nil, fmt.Errorf("mongo: configure %s: %w", u.text(true), err)
	}
	o := &Options{uri: u, api: c.ServerAPI, hosts: map[string]string{}}
	for name, address := range c.HostMap {
		o.hosts[strings.ToLower(name)] = address
	}
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("mongo: parse %s: %w", u.text(true), shield(err, u.secrets()))
	}
	return o, nil
}

// apply puts what a Config says into the connection string, so that there is one
// form that all is read from.
func (c *Config) apply(u *uri) error {
	password, err := c.password()
	if err != nil {
		return err
	}
	u.setLogin(c.Username, password)
	if u.secret && u.user == "" {
		return errors.New("a password is given, and no user")
	}
	for _, s := range []struct{ key, value string }{
		{"authSource", c.AuthSource},
		{"authMechanism", c.AuthMechanism},
		{"tlsCAFile", c.CAFile},
		{"tlsCertificateKeyFile", c.CertificateKeyFile},
		{"appName", c.AppName},
		{"compressors", strings.Join(c.Compressors, ",")},
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
	for _, s := range []struct {
		key   string
		value time.Duration
	}{
		{"connectTimeoutMS", c.ConnectTimeout},
		{"serverSelectionTimeoutMS", c.SelectionTimeout},
		{"heartbeatFrequencyMS", c.HeartbeatInterval},
	} {
		if s.value != 0 {
			u.set(s.key, milliseconds(s.value))
		}
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

// check lets the driver read the connection string, and refuses what it lets pass.
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
			return fmt.Errorf("there is no option %s", key)
		}
	}
	if o.parsed.LoadBalanced {
		return errors.New("loadBalanced: a transaction would need a connection of its own; name the hosts instead")
	}
	for _, c := range o.parsed.Compressors {
		if !slices.Contains([]string{"snappy", "zstd", "zlib"}, c) {
			return fmt.Errorf("compressors: %q is not one of snappy, zstd and zlib", c)
		}
	}
	// A user without a password is a login that cannot work, where the mechanism
	// does not get its secret from somewhere else.
	mechanism := strings.ToUpper(o.parsed.AuthMechanism)
	if o.uri.login && o.parsed.Password == "" &&
		(mechanism == "" || strings.HasPrefix(mechanism, "SCRAM") || mechanism == "PLAIN") {
		return errors.New("a user is given, and no password")
	}
	return nil
}

// client returns the driver's options. For mongodb+srv it asks DNS.
func (o *Options) client(d *dialer) (*options.ClientOptions, error) {
	client := options.Client().ApplyURI(o.uri.text(false))
	if err := client.Validate(); err != nil {
		return nil, shield(err, o.uri.secrets())
	}
	client.Timeout = nil
	client.SetDialer(d)
	if o.api != "" {
		client.SetServerAPIOptions(options.ServerAPI(options.ServerAPIVersion(o.api)))
	}
	return client, nil
}

// Hosts returns the hosts that the connection string names, as host:port; of
// mongodb+srv the name that DNS is asked for.
func (o *Options) Hosts() []string { return slices.Clone(o.parsed.RawHosts) }

// Direct reports whether the connection string names one server, with
// directConnection=true, and no other may be connected to.
func (o *Options) Direct() bool { return o.parsed.DirectConnectionSet && o.parsed.DirectConnection }

// ReplicaSet returns the name of the set, empty if none is given.
func (o *Options) ReplicaSet() string { return o.parsed.ReplicaSet }

// Username returns the user's name, empty if there is no login by name.
func (o *Options) Username() string { return o.parsed.Username }

// SelectionTimeout returns how long a call waits for a primary.
func (o *Options) SelectionTimeout() time.Duration { return o.selection }

// ReadPreference returns what the connection string says, primary if nothing.
func (o *Options) ReadPreference() ReadPreference {
	p := ReadPreference{
		Mode:         "primary",
		Tags:         slices.Clone(o.parsed.ReadPreferenceTagSets),
		MaxStaleness: o.parsed.MaxStaleness,
	}
	for _, mode := range []string{"primaryPreferred", "secondary", "secondaryPreferred", "nearest"} {
		if strings.EqualFold(o.parsed.ReadPreference, mode) {
			p.Mode = mode
		}
	}
	return p
}

// String returns the connection string without its secrets.
func (o Options) String() string { return o.uri.text(true) }

// GoString is String.
func (o Options) GoString() string { return o.String() }

// LogValue is String.
func (o Options) LogValue() slog.Value { return slog.StringValue(o.String()) }

// shield returns err, or where it shows a secret an error that does not.
func shield(err error, secrets []string) error {
	text := err.Error()
	for _, s := range secrets {
		if strings.Contains(text, s) {
			return errors.New("the reason is not shown, because it has the password or a part of the text that may be one")
		}
	}
	return err
}
