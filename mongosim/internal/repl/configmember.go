package repl

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

func parseMember(doc bson.Raw) (Member, error) {
	m := Member{Votes: 1, Priority: 1, BuildIndexes: true}
	if err := unique("MemberConfig", doc); err != nil {
		return m, err
	}
	f := fields{doc: doc}
	it := rawbson.NewIter(doc)
	for it.Next() {
		switch name := it.Name(); name {
		case "_id":
			m.ID = int(f.int64(name))
		case "host":
			m.Host = strings.TrimSpace(f.text(name))
		case "votes":
			m.Votes = int(f.int64(name))
		case "priority":
			v, ok := it.Raw().AsFloat64OK()
			if !it.Raw().IsNumber() || !ok {
				f.fault(name, "a number")
			}
			m.Priority = v
		case "hidden":
			m.Hidden = f.bool(name, false)
		case "arbiterOnly":
			m.Arbiter = f.bool(name, false)
		case "buildIndexes":
			m.BuildIndexes = f.bool(name, true)
		case "slaveDelay", "secondaryDelaySecs":
			m.DelaySecs = f.int64(name)
		case "tags":
			m.Tags = f.tags(name)
		case "newlyAdded":
		default:
			return m, fmt.Errorf("BSON field 'MemberConfig.%s' is an unknown field.", name) //nolint:revive,staticcheck // the server's words
		}
	}
	if f.err != nil {
		return m, f.err
	}
	if !f.has("_id") || m.Host == "" {
		return m, errors.New("a member needs an _id and a host")
	}
	if !strings.Contains(m.Host, ":") {
		m.Host += ":27017"
	}
	if m.Arbiter && m.Priority == 1 {
		m.Priority = 0
	}
	return m, m.validate()
}

func (f *fields) tags(name string) map[string]string {
	tags := map[string]string{}
	it := rawbson.NewIter(f.document(name))
	for it.Next() {
		v, ok := it.Text()
		if !ok {
			f.err = cmp.Or(f.err, fmt.Errorf("tags.%s field has non-string value of type %s", it.Name(), it.Type))
			return nil
		}
		tags[strings.Clone(it.Name())] = strings.Clone(v)
	}
	return tags
}

func (m *Member) validate() error {
	switch {
	case m.ID < 0 || m.ID > 255:
		return fmt.Errorf("_id field value of %d is out of range.", m.ID) //nolint:revive,staticcheck // the server's words
	case m.Votes != 0 && m.Votes != 1:
		return fmt.Errorf("votes field value is %d but must be 0 or 1", m.Votes)
	case !(m.Priority >= 0 && m.Priority <= 1000): // not a number is refused too
		return fmt.Errorf("priority field value of %v is out of range", m.Priority)
	case m.DelaySecs < 0 || m.DelaySecs > 366*24*3600:
		return fmt.Errorf("secondaryDelaySecs field value of %d seconds is out of range", m.DelaySecs)
	case m.Arbiter && m.Votes == 0:
		return errors.New("Arbiter must vote (cannot have 0 votes)") //nolint:staticcheck // the server's words
	case m.Arbiter && m.Priority != 0:
		return fmt.Errorf("Member %s is an arbiter but has priority %v. Arbiter priority must be 0.", m.Host, m.Priority) //nolint:revive,staticcheck // the server's words
	case m.Arbiter && len(m.Tags) > 0:
		return errors.New("Cannot set tags on arbiters.") //nolint:revive,staticcheck // the server's words
	case m.Priority == 0:
		return nil
	case m.Votes == 0:
		return errors.New("priority must be 0 when non-voting (votes:0)")
	case m.DelaySecs > 0:
		return errors.New("priority must be 0 when secondaryDelaySecs is used")
	case m.Hidden:
		return errors.New("priority must be 0 when hidden=true")
	case !m.BuildIndexes:
		return errors.New("priority must be 0 when buildIndexes=false")
	}
	return nil
}
