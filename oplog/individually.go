package oplog

// IsDDL reports whether the operation changes more than documents: it is a command,
// or a write to a system.views, which creates, changes or drops a view.
func (o *Op) IsDDL() bool {
	return o.Kind == KindCommand || o.Kind.IsCRUD() && o.NS.IsSystemViews()
}

// MustBeProcessedIndividually reports whether everything before the operation has to
// be applied before it, and it before anything after it. The term and the rule are
// MongoDB's (OplogBatcher::mustBeProcessedIndividually): DDL, and writes of users and
// roles. For an applyOps and the end of a transaction it is the rule of a single
// command; package txn asks for each of their operations instead.
//
// MongoDB's rule also has admin.system.version and config.system.*, which are never
// mirrored.
func (o *Op) MustBeProcessedIndividually() bool {
	return o.IsDDL() || o.Kind.IsCRUD() && o.NS.IsPrivileges()
}
