// Package servererr is the server's own way to refuse: a number, the name of the
// number, a message, labels, and for some numbers further fields.
//
// It is shared by everything that answers in a server's place, so that one error
// looks the same whoever found it. It knows nothing of why a thing is refused.
package servererr
