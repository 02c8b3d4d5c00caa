package oplog

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// UUID identifies a collection or an index build, independent of its current name.
// The zero value means none: the server never assigns it.
type UUID [16]byte

// IsZero reports whether u is the zero value.
func (u UUID) IsZero() bool { return u == UUID{} }

// String returns u in hexadecimal, in the usual five groups.
func (u UUID) String() string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// Binary returns u as BSON binary data of subtype 4.
func (u UUID) Binary() bson.Binary {
	return bson.Binary{Subtype: bson.TypeBinaryUUID, Data: u[:]}
}
