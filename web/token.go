package web

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

const (
	// minToken is the length of the shortest token.
	minToken = 16
	// tokensBytes bounds a file of tokens.
	tokensBytes = 64 << 10
)

// errToken is wrapped where a token is not one of those that allow changes.
var errToken = errors.New("the bearer token is not known")

// Tokens are the bearer tokens that allow changes.
type Tokens struct {
	file string
	list []token
}

// token is a token with its name. Hashes have one length, so that comparing them takes one time.
type token struct {
	name string
	hash [sha256.Size]byte
}

// NewTokens returns the tokens of a file, which is read again for each change, and one more that
// may be empty. A line of the file is a token, or a name and a token; empty lines and those that
// begin with # are skipped.
func NewTokens(file, more string) (*Tokens, error) {
	t := &Tokens{file: file}
	var err error
	if more != "" {
		if t.list, err = parseTokens(more); err != nil {
			return nil, err
		}
	}
	if file != "" {
		_, err = t.read()
	}
	return t, err
}

// read returns all tokens as they are now.
func (t *Tokens) read() ([]token, error) {
	if t.file == "" {
		return t.list, nil
	}
	f, err := os.Open(t.file)
	if err == nil {
		defer f.Close() //nolint:errcheck // it was only read
		var text []byte
		if text, err = io.ReadAll(io.LimitReader(f, tokensBytes+1)); err == nil && len(text) > tokensBytes {
			err = fmt.Errorf("it is larger than %d KiB", tokensBytes>>10)
		}
		var list []token
		if err == nil {
			list, err = parseTokens(string(text))
		}
		if err == nil && len(list) == 0 {
			err = errors.New("it has no token")
		}
		if err == nil {
			return append(list, t.list...), nil
		}
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	return nil, fmt.Errorf("read the tokens in %s: %w", t.file, err)
}

// parseTokens parses lines with tokens. The error has no token.
func parseTokens(text string) ([]token, error) {
	var list []token
	number := 0
	for line := range strings.Lines(text) {
		number++
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		name, secret := "token", words[len(words)-1]
		if len(words) == 2 {
			name = words[0]
		}
		switch {
		case len(words) > 2:
			return nil, fmt.Errorf("line %d: want a token, or a name and a token", number)
		case len(secret) < minToken:
			return nil, fmt.Errorf("line %d: the token has %d characters, and %d are the least: openssl rand -hex 32 makes one", number, len(secret), minToken)
		}
		list = append(list, token{name, sha256.Sum256([]byte(secret))})
	}
	return list, nil
}

// find returns the name of a token. Its time depends on neither the token nor which one it is.
func (t *Tokens) find(secret string) (name string, err error) {
	list, err := t.read()
	if err != nil {
		return "", err
	}
	hash := sha256.Sum256([]byte(secret))
	found := -1
	for i := range list {
		same := subtle.ConstantTimeCompare(hash[:], list[i].hash[:])
		found = subtle.ConstantTimeSelect(same, i, found)
	}
	if found < 0 {
		return "", errToken
	}
	return list[found].name, nil
}
