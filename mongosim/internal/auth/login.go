package auth

import (
	"encoding/base64"
	"slices"
	"strings"

	"github.com/xdg-go/scram"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

// conversationID is the id of every conversation: a connection has one at a
// time.
const conversationID = 1

// login is what a connection's Login holds.
type login struct {
	users []identity
	// talk is the conversation under way, nil if there is none.
	talk *conversation
}

// identity identifies a user while it exists: one created again under the same
// name is another.
type identity struct {
	userName
	id [16]byte
}

type conversation struct {
	db    string
	steps *scram.ServerConversation
	// who is the user's identity, once the client has sent the name.
	who *identity
	// short leaves out the empty exchange at the end.
	short bool
	// proven is true when only the empty exchange is left.
	proven bool
}

func loginOf(c *dispatch.Conn) *login {
	l, ok := c.Login.(*login)
	if !ok {
		l = &login{}
		c.Login = l
	}
	return l
}

// loggedIn returns the users of a connection, without those dropped since.
func (m *Manager) loggedIn(c *dispatch.Conn) []*user {
	l, ok := c.Login.(*login)
	if !ok {
		return nil
	}
	users := make([]*user, 0, len(l.users))
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, who := range l.users {
		if u, ok := m.users[who.userName]; ok && u.id == who.id {
			users = append(users, u)
		}
	}
	return users
}

// Start answers saslStart with {conversationId, done, payload}. A conversation
// in progress is dropped.
func (m *Manager) Start(c *dispatch.Conn, db string, cmd bson.Raw) (bson.Raw, error) {
	l := loginOf(c)
	l.talk = nil
	e, ok := rawbson.Lookup(cmd, "mechanism")
	name, isText := e.Text()
	if !ok || !isText {
		return nil, noSuchKey("mechanism")
	}
	payload, asText, err := payloadOf(cmd)
	if err != nil {
		return nil, err
	}
	talk, err := m.newConversation(strings.Clone(name), db)
	if err != nil {
		return nil, err
	}
	if e, ok := rawbson.Lookup(cmd, "options"); ok {
		options, _ := e.Document()
		skip, _ := rawbson.Lookup(options, "skipEmptyExchange")
		talk.short, _ = skip.Bool()
	}
	answer, err := talk.steps.Step(payload)
	if err != nil {
		return nil, authenticationFailed()
	}
	l.talk = talk
	return step(answer, false, asText), nil
}

// Continue answers saslContinue with {conversationId, done, payload}.
func (m *Manager) Continue(c *dispatch.Conn, db string, cmd bson.Raw) (bson.Raw, error) {
	l := loginOf(c)
	talk := l.talk
	if talk == nil {
		return nil, protocolError("No SASL session state found")
	}
	l.talk = nil // unless this step goes well
	if talk.db != db {
		return nil, protocolError("Attempt to switch database target during SASL authentication.")
	}
	e, ok := rawbson.Lookup(cmd, "conversationId")
	id, isNumber := e.Int64()
	if !ok || !isNumber {
		return nil, noSuchKey("conversationId")
	}
	if id != conversationID {
		return nil, protocolError("sasl: Mismatched conversation id")
	}
	payload, asText, err := payloadOf(cmd)
	if err != nil {
		return nil, err
	}
	if talk.proven {
		if payload != "" {
			return nil, authenticationFailed()
		}
		l.add(*talk.who)
		return step("", true, asText), nil
	}
	answer, err := talk.steps.Step(payload)
	if err != nil || !talk.steps.Valid() {
		return nil, authenticationFailed()
	}
	if talk.short {
		l.add(*talk.who)
		return step(answer, true, asText), nil
	}
	talk.proven = true
	l.talk = talk
	return step(answer, false, asText), nil
}

// add logs a user in, in place of another one of the database.
func (l *login) add(who identity) {
	l.users = slices.DeleteFunc(l.users, func(u identity) bool { return u.db == who.db })
	l.users = append(l.users, who)
}

// Logout ends the login to a database, if there is one.
func (m *Manager) Logout(c *dispatch.Conn, db string) {
	l := loginOf(c)
	l.users = slices.DeleteFunc(l.users, func(u identity) bool { return u.db == db })
}

// payloadOf reads a payload, which may also be a string in base64.
func payloadOf(cmd bson.Raw) (payload string, asText bool, err error) {
	e, ok := rawbson.Lookup(cmd, "payload")
	if !ok {
		return "", false, noSuchKey("payload")
	}
	if _, data, ok := e.Binary(); ok {
		return string(data), false, nil
	}
	text, ok := e.Text()
	if !ok {
		return "", false, wrongPayload()
	}
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "", true, wrongPayload()
	}
	return string(data), true, nil
}

func step(payload string, done, asText bool) bson.Raw {
	i, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendInt32Element(doc, "conversationId", conversationID)
	doc = bsoncore.AppendBooleanElement(doc, "done", done)
	if asText {
		doc = bsoncore.AppendStringElement(doc, "payload", base64.StdEncoding.EncodeToString([]byte(payload)))
	} else {
		doc = bsoncore.AppendBinaryElement(doc, "payload", 0, []byte(payload))
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc
}
