// Package viewdef reads the definitions of views and time-series collections in
// system.views, resolves them to the underlying collection, and validates new ones before
// they are stored.
//
//	view ──Lookup──▶ Def ──▶ the view that it is on ──▶ … ──▶ collection
//	  └──────────── Resolve: all stages, in order ───────────┘
//
// One definition that is invalid makes all views of its database unusable, as on the
// server.
package viewdef
