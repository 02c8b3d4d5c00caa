package oplog

// IsDDL reports whether the operation changes more than documents: it is a command,
// or a write to a system.views collection, which creates, changes or drops a view.
func (o *Op) IsDDL() bool {
	return o.Kind == KindCommand || o.Kind.IsCRUD() && o.NS.IsSystemViews()
}

// MustBeProcessedIndividually reports whether the operation must be applied after
// everything before it, and before anything after it. The term and the rule are
// MongoDB's (OplogBatcher::mustBeProcessedIndividually): DDL, and writes of users
// and roles. For an applyOps or the end of a transaction it answers as for a single
// command; package txn checks their operations instead.
//
// MongoDB's rule also includes admin.system.version and config.system.*, which are
// never mirrored.
func (o *Op) MustBeProcessedIndividually() bool {
	return o.IsDDL() || o.Kind.IsCRUD() && o.NS.IsPrivileges()
}
