package driver

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// uri is a parsed connection string. User, password, database and the values of options
// stay percent-encoded.
type uri struct {
	scheme   string
	login    bool // there is an @
	user     string
	secret   bool // there is a colon before the @
	password string
	hosts    []string
	database string
	options  []option
}

type option struct{ key, value string }

const (
	schemePlain = "mongodb"
	schemeSRV   = "mongodb+srv"
)

// aliases maps second names of options to their canonical names.
var aliases = map[string]string{
	"ssl":                             "tls",
	"sslcertificateauthorityfile":     "tlscafile",
	"sslclientcertificatekeyfile":     "tlscertificatekeyfile",
	"sslclientcertificatekeypassword": "tlscertificatekeyfilepassword",
	"sslinsecure":                     "tlsinsecure",
	"heartbeatintervalms":             "heartbeatfrequencyms",
}

// hidden are the options whose values are not shown.
var hidden = []string{"tlscertificatekeyfilepassword", "authmechanismproperties"}

// splitURI parses a connection string. It is stricter than the driver. Its errors do not
// quote the text: if a password is not encoded, any part of the text may belong to it.
func splitURI(text string) (*uri, error) {
	u := &uri{}
	var rest string
	var ok bool
	u.scheme, rest, ok = strings.Cut(text, "://")
	if !ok || u.scheme != schemePlain && u.scheme != schemeSRV {
		return nil, errors.New("it does not begin with mongodb:// or mongodb+srv://")
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, database, _ := strings.Cut(rest, "/")
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		u.login = true
		u.user, u.password, u.secret = strings.Cut(authority[:at], ":")
		authority = authority[at+1:]
	}
	switch {
	case strings.ContainsAny(u.user, "@:") || strings.ContainsAny(u.password, "@:"),
		strings.ContainsAny(database, "@/:"), strings.Contains(query, "@"):
		return nil, errors.New("a character @ : / ? must be percent-encoded " +
			"in the user name, the password or a value")
	case !escaped(u.user):
		return nil, errors.New("the user name has a % that is not followed by two hexadecimal digits")
	case !escaped(u.password):
		return nil, errors.New("the password has a % that is not followed by two hexadecimal digits")
	case !escaped(database):
		return nil, errors.New("the database has a % that is not followed by two hexadecimal digits")
	}
	u.database = database
	for i, host := range strings.Split(authority, ",") {
		if err := checkHost(host, u.scheme); err != nil {
			return nil, fmt.Errorf("host %d: %w", i+1, err)
		}
		u.hosts = append(u.hosts, host)
	}
	if u.scheme == schemeSRV && len(u.hosts) != 1 {
		return nil, errors.New("mongodb+srv takes one name, not several hosts")
	}
	for _, pair := range strings.FieldsFunc(query, func(r rune) bool { return r == '&' || r == ';' }) {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" || !escaped(key) || !escaped(value) {
			return nil, errors.New("an option is not of the form name=value, percent-encoded")
		}
		u.options = append(u.options, option{key, value})
	}
	return u, nil
}

// escaped reports whether each % begins an encoded byte.
func escaped(s string) bool {
	_, err := url.PathUnescape(s)
	return err == nil
}

func checkHost(host, scheme string) error {
	name, port := host, ""
	switch {
	case host == "":
		return errors.New("it is empty")
	case strings.HasPrefix(host, "["):
		inner, after, ok := strings.Cut(host[1:], "]")
		if !ok || inner == "" || after != "" && after[0] != ':' {
			return errors.New("its brackets do not contain an address")
		}
		name, port = inner, after
	default:
		if i := strings.IndexByte(host, ':'); i >= 0 {
			name, port = host[:i], host[i:]
		}
	}
	if name == "" || !escaped(name) || strings.ContainsAny(name, " \t") {
		return errors.New("invalid name")
	}
	if port == "" {
		return nil
	}
	if scheme == schemeSRV {
		return errors.New("mongodb+srv takes a name without a port")
	}
	if n, err := strconv.ParseUint(port[1:], 10, 16); err != nil || n == 0 {
		return errors.New("its port is not a number from 1 to 65535 (write IPv6 addresses in brackets)")
	}
	return nil
}

// canonical returns the one name of an option.
func canonical(key string) string {
	key = strings.ToLower(key)
	if k, ok := aliases[key]; ok {
		return k
	}
	return key
}

func (u *uri) get(key string) (string, bool) {
	for _, o := range slices.Backward(u.options) {
		if canonical(o.key) == canonical(key) {
			return o.value, true
		}
	}
	return "", false
}

// set replaces an option or adds it. Value is plain text.
func (u *uri) set(key, value string) {
	u.drop(key)
	u.options = append(u.options, option{key, url.QueryEscape(value)})
}

func (u *uri) drop(key string) {
	u.options = slices.DeleteFunc(u.options, func(o option) bool { return canonical(o.key) == canonical(key) })
}

// setDefault adds an option unless it is present.
func (u *uri) setDefault(key, value string) {
	if _, ok := u.get(key); !ok {
		u.set(key, value)
	}
}

// setLogin sets the user and password if they are given, as plain text.
func (u *uri) setLogin(user string, password *string) {
	if user != "" {
		u.user, u.login = escapeAll(user), true
	}
	if password != nil {
		u.password, u.secret = escapeAll(*password), true
	}
}

// escapeAll percent-encodes everything except letters and digits: the driver decodes
// user names as paths, where a plus is not a space.
func escapeAll(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}

// text returns the connection string, with its secrets or without.
func (u *uri) text(redacted bool) string {
	var b strings.Builder
	b.WriteString(u.scheme + "://")
	if u.login {
		b.WriteString(u.user)
		switch {
		case u.secret && redacted:
			b.WriteString(":***")
		case u.secret:
			b.WriteString(":" + u.password)
		}
		b.WriteByte('@')
	}
	b.WriteString(strings.Join(u.hosts, ",") + "/" + u.database)
	for i, o := range u.options {
		b.WriteByte("?&"[min(i, 1)])
		value := o.value
		if redacted && (slices.Contains(hidden, canonical(o.key)) || u.password != "" && strings.Contains(value, u.password)) {
			value = "***"
		}
		b.WriteString(o.key + "=" + value)
	}
	return b.String()
}

// secrets returns the texts that must not be shown, encoded and plain.
func (u *uri) secrets() []string {
	var out []string
	add := func(s string, decode func(string) (string, error)) {
		out = append(out, s)
		if plain, err := decode(s); err == nil && plain != s {
			out = append(out, plain)
		}
	}
	add(u.password, url.PathUnescape)
	for _, o := range u.options {
		if slices.Contains(hidden, canonical(o.key)) {
			add(o.value, url.QueryUnescape)
		}
	}
	// Shorter texts occur in ordinary words.
	return slices.DeleteFunc(out, func(s string) bool { return len(s) < 4 })
}

// direct returns a copy that names hosts instead of using DNS, for the validation of
// everything else.
func (u *uri) direct() *uri {
	c := *u
	c.options = slices.Clone(u.options)
	if u.scheme == schemeSRV {
		c.scheme = schemePlain
		c.drop("srvMaxHosts")
		c.drop("srvServiceName")
		c.setDefault("tls", "true")
	}
	return &c
}
