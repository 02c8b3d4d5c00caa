// Package viewdef reads the definitions of views and time-series collections in
// system.views, follows them to the collection that they stand on, and checks those that
// are about to be stored.
//
//	view ──Lookup──▶ Def ──▶ what it stands on ──▶ … ──▶ collection
//	  └──────────── Resolve: all stages, in order ───────────┘
//
// One definition that is invalid makes all views of its database unusable, as on the
// server.
package viewdef
