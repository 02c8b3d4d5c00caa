package status

import (
	"strings"

	"github.com/oplogrep/replicator/internal/printable"
)

// defaultMetaDB is the metadata database that commands use by default.
const defaultMetaDB = "replicator"

// command is a command of the program on the link, to be copied and run as it is: with the target
// as this process reaches it, but for the login, which it does not tell. Args are words, which are
// quoted for a shell.
func (s *Snapshot) command(name string, args ...string) string {
	words := append([]string{"replicator", name, "--link", s.Link, "--target", s.targetURI()}, args...)
	if s.metaDB != "" && s.metaDB != defaultMetaDB {
		words = append(words, "--metadata-db", s.metaDB)
	}
	for i, word := range words {
		words[i] = printable.ShellWord(word)
	}
	return strings.Join(words, " ")
}

// targetURI is the connection string of the target without login and options, "…" while its
// members are not known.
func (s *Snapshot) targetURI() string {
	if len(s.Target.Hosts) == 0 {
		return "…"
	}
	uri := "mongodb://" + strings.Join(s.Target.Hosts, ",") + "/"
	if s.Target.Set != "" {
		uri += "?replicaSet=" + s.Target.Set
	}
	return uri
}
