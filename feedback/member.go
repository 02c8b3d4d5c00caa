package feedback

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
)

const (
	// maxMembers is the largest number of members of a set.
	maxMembers = 50
	// maxMemberID is the largest _id of a member.
	maxMemberID = 255
)

// ErrNotOurs reports a member that RemoveMember refuses to remove: it may hold
// data.
var ErrNotOurs = errors.New("not a hidden member without vote, priority and indexes")

// NewMember is a member of the source's set that stands for the mirror.
type NewMember struct {
	// ID is its _id. Negative means one that is free.
	ID int
	// Host is its address; no process needs to listen there.
	Host string
	// Tag and Value are its tag; Mode is the name of the write concern that waits for
	// a member with the tag. An empty Tag or Mode means "mirror", an empty Value
	// means Host.
	Tag, Value, Mode string
}

func (m *NewMember) setDefaults() {
	if m.Tag == "" {
		m.Tag = "mirror"
	}
	if m.Value == "" {
		m.Value = m.Host
	}
	if m.Mode == "" {
		m.Mode = "mirror"
	}
}

// ReadConfig returns the configuration of the set of caller's server.
func ReadConfig(ctx context.Context, caller mongo.Caller) (bson.Raw, error) {
	body := metadata.Document(func(dst []byte) []byte { return bsoncore.AppendInt32Element(dst, "replSetGetConfig", 1) })
	reply, err := caller.Call(ctx, mongo.Command{DB: "admin", Body: body})
	if err != nil {
		return nil, fmt.Errorf("feedback: read the source's configuration: %w", err)
	}
	config, _ := rawbson.Lookup(reply, "config")
	doc, ok := config.Document()
	if !ok {
		return nil, errors.New("feedback: read the source's configuration: the reply has no config")
	}
	return doc, nil
}

// Reconfigure installs config, the result of AddMember or RemoveMember. It fails if
// the configuration has changed since it was read.
func Reconfigure(ctx context.Context, primary mongo.Caller, config bson.Raw) error {
	body := metadata.Document(func(dst []byte) []byte { return bsoncore.AppendDocumentElement(dst, "replSetReconfig", config) })
	if _, err := primary.Call(ctx, mongo.Command{DB: "admin", Body: body}); err != nil {
		return fmt.Errorf("feedback: reconfigure the source: %w", err)
	}
	return nil
}

// member is a member of a configuration, with the fields used here.
type member struct {
	doc  bson.Raw
	id   int64
	host string
	ours bool // looks exactly like a member that stands for a mirror
	tags map[string]string
}

// readMembers reads the members of a configuration.
func readMembers(config bson.Raw) ([]member, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	e, _ := rawbson.Lookup(config, "members")
	array, ok := e.Array()
	if !ok {
		return nil, errors.New("it has no members")
	}
	var members []member
	it := rawbson.NewIter(array)
	for it.Next() {
		doc, ok := it.Document()
		if !ok {
			return nil, fmt.Errorf("members.%s is not a document", it.Name())
		}
		m := member{doc: doc, tags: map[string]string{}}
		id, _ := rawbson.Lookup(doc, "_id")
		if m.id, ok = id.Int64(); !ok {
			return nil, fmt.Errorf("members.%s has no _id", it.Name())
		}
		host, _ := rawbson.Lookup(doc, "host")
		m.host, _ = host.Text()
		m.ours = is(doc, "votes", false) && is(doc, "priority", false) && is(doc, "hidden", true) && is(doc, "buildIndexes", false)
		tags, _ := rawbson.Lookup(doc, "tags")
		tagDoc, _ := tags.Document()
		for each := rawbson.NewIter(tagDoc); tagDoc != nil && each.Next(); {
			m.tags[each.Name()], _ = each.Text()
		}
		members = append(members, m)
	}
	return members, it.Err()
}

// is reports whether a field is present and has this truth value by the server's
// rules.
func is(doc bson.Raw, name string, truth bool) bool {
	e, ok := rawbson.Lookup(doc, name)
	return ok && e.Truth() == truth
}

// AddMember returns config, as returned by ReadConfig, with one more member that
// stands for the mirror (hidden, tagged, without vote, priority and indexes) and
// with the write concern that waits for it. It also returns the member's _id.
func AddMember(config bson.Raw, add NewMember) (bson.Raw, int, error) {
	add.setDefaults()
	members, err := readMembers(config)
	if err != nil {
		return nil, 0, fmt.Errorf("feedback: add %s to the source's configuration: %w", add.Host, err)
	}
	id, err := add.check(members)
	if err != nil {
		return nil, 0, fmt.Errorf("feedback: add %s to the source's configuration: %w", add.Host, err)
	}
	docs := make([]bson.Raw, 0, len(members)+1)
	for _, m := range members {
		docs = append(docs, m.doc)
	}
	docs = append(docs, add.document(id))
	modes, err := add.modes(config)
	if err != nil {
		return nil, 0, fmt.Errorf("feedback: add %s to the source's configuration: %w", add.Host, err)
	}
	next, err := change(config, docs, modes)
	if err != nil {
		return nil, 0, fmt.Errorf("feedback: add %s to the source's configuration: %w", add.Host, err)
	}
	return next, int(id), nil
}

// check validates m and returns the _id of the new member.
func (m *NewMember) check(members []member) (int64, error) {
	if m.Host == "" {
		return 0, errors.New("no host")
	}
	if len(members) >= maxMembers {
		return 0, fmt.Errorf("it has %d members already, the limit", len(members))
	}
	used := map[int64]bool{}
	id := int64(0)
	for _, o := range members {
		if o.host == m.Host {
			return 0, fmt.Errorf("it has a member %s, with _id %d", m.Host, o.id)
		}
		used[o.id] = true
		// The _id of a removed member may still be in use somewhere.
		id = max(id, o.id+1)
	}
	if m.ID >= 0 {
		id = int64(m.ID)
	}
	for m.ID < 0 && (id > maxMemberID || used[id]) {
		id = (id + 1) % (maxMemberID + 1)
	}
	if id > maxMemberID || used[id] {
		return 0, fmt.Errorf("_id %d is in use, or above %d", id, maxMemberID)
	}
	return id, nil
}

func (m *NewMember) document(id int64) bson.Raw {
	return metadata.Document(func(dst []byte) []byte {
		dst = bsoncore.AppendInt32Element(dst, "_id", int32(id))
		dst = bsoncore.AppendStringElement(dst, "host", m.Host)
		dst = bsoncore.AppendBooleanElement(dst, "buildIndexes", false)
		dst = bsoncore.AppendBooleanElement(dst, "hidden", true)
		dst = bsoncore.AppendInt32Element(dst, "priority", 0)
		dst = bsoncore.AppendInt32Element(dst, "votes", 0)
		return metadata.AppendDoc(dst, "tags", func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, m.Tag, m.Value) })
	})
}

// modes returns settings.getLastErrorModes, with the new member's added.
func (m *NewMember) modes(config bson.Raw) (bson.Raw, error) {
	old := readModes(config)
	one := metadata.Document(func(dst []byte) []byte { return bsoncore.AppendInt32Element(dst, m.Tag, 1) })
	if e, found := rawbson.Lookup(old, m.Mode); found {
		doc, _ := e.Document()
		want, ok := rawbson.Lookup(doc, m.Tag)
		n, _ := want.Int64()
		if !ok || n != 1 || len(fieldNames(doc)) != 1 {
			return nil, fmt.Errorf("it already has another write concern %q: %s", m.Mode, doc)
		}
		return old, nil
	}
	return metadata.Document(func(dst []byte) []byte {
		dst = append(dst, inside(old)...)
		return bsoncore.AppendDocumentElement(dst, m.Mode, one)
	}), nil
}

// RemoveMember returns config, as returned by ReadConfig, without the member id,
// which must have been added by AddMember, and without write concerns that only it
// could satisfy.
func RemoveMember(config bson.Raw, id int) (bson.Raw, error) {
	fail := func(err error) (bson.Raw, error) {
		return nil, fmt.Errorf("feedback: remove member %d from the source's configuration: %w", id, err)
	}
	members, err := readMembers(config)
	if err != nil {
		return fail(err)
	}
	at := slices.IndexFunc(members, func(m member) bool { return m.id == int64(id) })
	if at < 0 {
		return fail(errors.New("no such member"))
	}
	if !members[at].ours {
		return fail(fmt.Errorf("%s: %w", members[at].host, ErrNotOurs))
	}
	members = slices.Delete(members, at, at+1)
	tags := map[string]map[string]bool{}
	docs := make([]bson.Raw, 0, len(members))
	for _, m := range members {
		docs = append(docs, m.doc)
		for tag, value := range m.tags {
			if tags[tag] == nil {
				tags[tag] = map[string]bool{}
			}
			tags[tag][value] = true
		}
	}
	modes := metadata.Document(func(dst []byte) []byte {
		old := readModes(config)
		for it := rawbson.NewIter(old); it.Next(); {
			if doc, ok := it.Document(); ok && satisfied(doc, tags) {
				dst = bsoncore.AppendDocumentElement(dst, it.Name(), doc)
			}
		}
		return dst
	})
	next, err := change(config, docs, modes)
	if err != nil {
		return fail(err)
	}
	return next, nil
}

// satisfied reports whether the values of the tags can satisfy a mode.
func satisfied(mode bson.Raw, tags map[string]map[string]bool) bool {
	for it := rawbson.NewIter(mode); it.Next(); {
		if n, ok := it.Int64(); ok && int64(len(tags[it.Name()])) < n {
			return false
		}
	}
	return true
}

var noFields = metadata.Document(func(dst []byte) []byte { return dst })

// readModes returns settings.getLastErrorModes.
func readModes(config bson.Raw) bson.Raw {
	settings, _ := rawbson.Lookup(config, "settings")
	doc, ok := settings.Document()
	if !ok {
		return noFields
	}
	modes, _ := rawbson.Lookup(doc, "getLastErrorModes")
	if doc, ok = modes.Document(); !ok {
		return noFields
	}
	return doc
}

// inside returns the elements of a document.
func inside(doc bson.Raw) []byte { return doc[4 : len(doc)-1] }

func fieldNames(doc bson.Raw) []string {
	var names []string
	for it := rawbson.NewIter(doc); it.Next(); {
		names = append(names, it.Name())
	}
	return names
}

// change returns config with other members and modes, and the next version. All
// other fields are kept byte for byte.
func change(config bson.Raw, members []bson.Raw, modes bson.Raw) (bson.Raw, error) {
	var fault error
	versions, settings := 0, false
	next := metadata.Document(func(dst []byte) []byte {
		for it := rawbson.NewIter(config); it.Next(); {
			switch it.Name() {
			case "version":
				n, ok := it.Int64()
				if !ok {
					fault = errors.New("its version is not a number")
				}
				versions++
				dst = appendVersion(dst, it.Type, n+1)
			case "members":
				i, array := bsoncore.AppendArrayElementStart(dst, "members")
				for j, m := range members {
					array = bsoncore.AppendDocumentElement(array, strconv.Itoa(j), m)
				}
				dst = metadata.CloseDoc(array, i)
			case "settings":
				settings = true
				doc, ok := it.Document()
				if !ok {
					fault = errors.New("its settings are not a document")
					continue
				}
				dst = appendSettings(dst, doc, modes)
			default:
				dst = bsoncore.AppendValueElement(dst, it.Name(), bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value})
			}
		}
		if !settings && !bytes.Equal(modes, noFields) {
			dst = appendSettings(dst, noFields, modes)
		}
		return dst
	})
	if fault == nil && versions != 1 {
		fault = errors.New("it has no version")
	}
	return next, fault
}

// appendVersion appends the version, in the type that it had.
func appendVersion(dst []byte, t bson.Type, n int64) []byte {
	if t == bson.TypeInt32 {
		return bsoncore.AppendInt32Element(dst, "version", int32(n))
	}
	return bsoncore.AppendInt64Element(dst, "version", n)
}

// appendSettings appends the settings with other modes.
func appendSettings(dst []byte, settings, modes bson.Raw) []byte {
	return metadata.AppendDoc(dst, "settings", func(dst []byte) []byte {
		replaced := false
		for it := rawbson.NewIter(settings); it.Next(); {
			if it.Is("getLastErrorModes") {
				replaced = true
				dst = bsoncore.AppendDocumentElement(dst, "getLastErrorModes", modes)
				continue
			}
			dst = bsoncore.AppendValueElement(dst, it.Name(), bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value})
		}
		if !replaced {
			dst = bsoncore.AppendDocumentElement(dst, "getLastErrorModes", modes)
		}
		return dst
	})
}
