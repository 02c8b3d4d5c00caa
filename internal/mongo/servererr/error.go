package servererr

import (
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Error is an error that a server returned.
type Error struct {
	// Code is the field code.
	Code Code
	// Message is the field errmsg.
	Message string
	// Labels are the errorLabels of the reply, such as TransientTransactionError.
	// A single write error has none.
	Labels []string
	// Info has the further fields of the error, in the server's order: keyPattern and
	// keyValue, errInfo, and the like. May be nil.
	Info bson.Raw
}

// New returns an Error whose message is that of format and args.
func New(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// WithLabels returns a copy with further labels.
func (e *Error) WithLabels(labels ...string) *Error {
	c := *e
	c.Labels = slices.Concat(e.Labels, labels)
	return &c
}

// WithInfo returns a copy with the given Info.
func (e *Error) WithInfo(info bson.Raw) *Error {
	c := *e
	c.Info = info
	return &c
}

// Within returns a copy with a context in its message, in the server's form: context,
// " :: caused by :: ", message.
func (e *Error) Within(context string) *Error {
	c := *e
	c.Message = context + " :: caused by :: " + e.Message
	return &c
}

// Error implements error. If the message repeats the command, only its beginning is
// included.
func (e *Error) Error() string {
	return fmt.Sprintf("%s (%s, code %d)", brief(e.Message), e.Code, int32(e.Code))
}

// brief shortens the command in "not authorized on DB to execute command {...}" to its
// first element.
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
