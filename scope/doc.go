// Package scope decides which namespaces of the source are mirrored, and under which
// name.
//
// It has three lists: --include; --exclude, which has precedence over --include; and
// --map, which renames. An empty --include means everything.
//
//	shop.orders     that collection
//	shop, shop.*    all collections of the database
//	shop*.log?      * stands for any number of characters, ? for one; the first
//	                dot separates database and collection, * in the collection's
//	                part matches dots too
//	/shop\.(a|b)/   a regular expression that must match DB.COLLECTION from
//	                beginning to end; flags are inside, as in /(?i)shop\..*/
//
//	shop=store              everything of shop goes to the database store
//	shop.orders=store.all   that collection goes there, wherever shop goes
//
// # Rules for system namespaces
//
//	NAMESPACE                     IS MIRRORED          GOES TO
//	db.system.buckets.X           if db.X is           the buckets of X's target
//	db.system.views               if anything of db    the database's
//	db.tmp.agg_out.X and others   can be               the database's
//	db.$cmd, db                                        the database's
//	db.system.js                  like any collection  the database's
//	admin.system.users, .roles    only if asked for    the same
//	local, config, admin, the     never
//	metadata database,
//	db.system.profile
//
// A write to system.views defines a view: the view's own name decides whether it is
// mirrored, and under which name. For a command the collection that it names decides.
//
// # Temporary collections
//
// $out, mapReduce, convertToCapped and a rename between databases write to a collection
// whose name the server generates, and then rename it. Such a collection is mirrored if
// it could be renamed to one that is in scope, whatever the lists say about the generated
// name: otherwise the rename would bring in a collection that was never copied. Whether
// anything of a database can be in scope is decided exactly, except for combinations of
// several excludes and for regular expressions with word boundaries. For these the answer
// is yes, and a temporary collection may be mirrored unnecessarily.
//
// Temporary collections go where their database goes. So if only shop.orders goes to
// another database than shop, a $out into shop.orders becomes a rename between
// databases on the target. Package applier/ddl refuses that with an error that says so;
// to prevent it, map the database too (--map shop=store).
//
// The state collections of an encrypted collection (enxcol_.X.esc and so on) are ordinary
// collections here: to mirror X, include enxcol_.X.* too.
//
// # Guarantees
//
// No two namespaces go to the same one, and none goes to a system database: New returns
// an error for lists that would allow it. A Scope is immutable. Scopes with the same
// Fingerprint give the same answers.
package scope
