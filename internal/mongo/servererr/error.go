package servererr

import (
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Error is a refusal as a server words it.
type Error struct {
	// Code is the server's number for it.
	Code Code
	// Message is what the server writes as errmsg.
	Message string
	// Labels are the errorLabels of the reply, such as TransientTransactionError.
	// They belong to the command's reply, never to a single write error.
	Labels []string
	// Info holds the further fields that this code carries beside errmsg, in the
	// server's order: keyPattern and keyValue, errInfo, and the like. May be nil.
	Info bson.Raw
}

// New makes an Error; format and args give its message.
func New(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// WithLabels returns a copy that has the given labels too.
func (e *Error) WithLabels(labels ...string) *Error {
	c := *e
	c.Labels = slices.Concat(e.Labels, labels)
	return &c
}

// WithInfo returns a copy that carries info.
func (e *Error) WithInfo(info bson.Raw) *Error {
	c := *e
	c.Info = info
	return &c
}

// Within returns a copy whose message says where the fault was met, the way the
// server does: context, " :: caused by :: ", message.
func (e *Error) Within(context string) *Error {
	c := *e
	c.Message = context + " :: caused by :: " + e.Message
	return &c
}

// Error implements error. Of a command that a refusal repeats only the beginning is
// left: the rest is long, and says nothing.
func (e *Error) Error() string {
	return fmt.Sprintf("%s (%s, code %d)", brief(e.Message), e.Code, int32(e.Code))
}

// brief cuts the command out of "not authorized on DB to execute command {...}", but
// for its name and what it is of.
func brief(message string) string {
	const repeats = " to execute command { "
	before, command, found := strings.Cut(message, repeats)
	first, _, more := strings.Cut(command, ", ")
	if !found || !more {
		return message
	}
	return before + repeats + first + ", ... }"
}

// Is reports whether target is an Error of the same code.
func (e *Error) Is(target error) bool {
	other, ok := target.(*Error)
	return ok && other.Code == e.Code
}
