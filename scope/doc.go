// Package scope decides what of the source is mirrored, and under which name.
//
// Three lists say so: what is included (--include), what is excluded (--exclude),
// which wins, and what gets another name (--map). Nothing included means
// everything.
//
//	shop.orders     that collection
//	shop, shop.*    all collections of the database
//	shop*.log?      * stands for any number of characters, ? for one; the first
//	                dot separates database and collection, * in the collection's
//	                part matches dots too
//	/shop\.(a|b)/   a regular expression that has to match DB.COLLECTION from
//	                beginning to end; flags stand inside, as in /(?i)shop\..*/
//
//	shop=store              everything of shop goes to the database store
//	shop.orders=store.all   that one collection goes there, whatever shop does
//
// # What follows from something else
//
//	NAMESPACE                     IS MIRRORED          GOES TO
//	db.system.buckets.X           if db.X is           the buckets of where X goes
//	db.system.views               if anything of db    the database's
//	db.tmp.agg_out.X and others   can be               the database's
//	db.$cmd, db                                        the database's
//	db.system.js                  like any collection  the database's
//	admin.system.users, .roles    only if asked for    the same
//	local, config, admin, the     never
//	metadata database,
//	db.system.profile
//
// A write to system.views concerns a view: whether that one is mirrored, and its
// name, is asked for by the view's own name. A command is decided by the
// collection that it names.
//
// # Temporary collections
//
// $out, mapReduce, convertToCapped and a rename between databases fill a
// collection with a name of the server's making and then rename it into place.
// Those names are mirrored wherever the collection could end up in scope, whatever
// the lists say about the names themselves: otherwise the rename would bring in a
// collection that was never copied. Whether anything of a database can be in scope
// is decided exactly but for combinations of several excludes and for regular
// expressions with word boundaries. Where it is not, the answer is yes, and a
// temporary collection may be mirrored for nothing.
//
// They go where their database goes. So if shop.orders alone goes to another
// database than shop, a $out into shop.orders becomes a rename between databases
// on the target. That is refused when it happens, by package applier/ddl, with an
// error that says so; to prevent it, let the database go there too (--map
// shop=store).
//
// The collections that keep the state of an encrypted one (enxcol_.X.esc and so
// on) are collections like others here: who includes X by name includes
// enxcol_.X.* too.
//
// # Guarantees
//
// No two namespaces go to the same one, and none goes to a system database: New
// refuses lists that allow it. A Scope never changes, so what it says of a
// namespace is the same for the whole life of a link, as long as its Fingerprint
// is.
package scope
