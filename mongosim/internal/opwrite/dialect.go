package opwrite

import (
	"fmt"
	"strconv"
	"strings"
)

// Dialect is the server version whose oplog is written.
type Dialect struct {
	// Version is the full server version, such as "5.0.7".
	Version string
	// FCV is the feature compatibility version, such as "5.0"; 5.0 with FCV "4.4"
	// writes $v:1 updates. Empty means that of Version.
	FCV string
}

// TrimsCapped reports whether each member trims its capped collections by itself,
// as with a feature compatibility version below 5.0, instead of the primary
// logging a delete for each document that an insert pushes out.
func (d Dialect) TrimsCapped() bool {
	f, err := d.format()
	return err == nil && f.trimsCapped
}

// format is a dialect's form of entries.
type format struct {
	// modern puts stmtId and needsRetryImage with the operation, gives inserts
	// an o2, and keeps images in config.image_collection (6.0).
	modern bool
	// wallFirst puts wall before v (4.4).
	wallFirst bool
	// deltas logs updates by operators as $v:2 (FCV 5.0).
	deltas bool
	// trimsCapped leaves capped deletions out of the log (FCV 4.4).
	trimsCapped bool
	// groupDeletes logs multi-deletes in groups (6.1, so 7.0).
	groupDeletes bool
	// groupInserts logs inserts of several documents in groups (8.0).
	groupInserts bool
	// sessionTail is what the server writes after a session id in messages.
	sessionTail string
}

func (d Dialect) format() (format, error) {
	version, err := parseVersion(d.Version)
	if err != nil {
		return format{}, err
	}
	fcv := version
	if d.FCV != "" {
		if fcv, err = parseVersion(d.FCV); err != nil {
			return format{}, err
		}
	}
	if version < 404 || version >= 900 || fcv > version || fcv < 404 {
		return format{}, fmt.Errorf("dialect %s with feature compatibility version %s is not known; want 4.4 to 8.0, and no version above the dialect's", d.Version, d.FCV)
	}
	f := format{
		modern:       fcv >= 600,
		wallFirst:    version < 500,
		deltas:       fcv >= 500,
		trimsCapped:  fcv < 500,
		groupDeletes: fcv >= 601,
		groupInserts: fcv >= 800,
	}
	if version >= 600 {
		f.sessionTail = " -  - "
	}
	return f, nil
}

// parseVersion reads "5.0.7" or "5.0" as 500.
func parseVersion(s string) (int, error) {
	parts := strings.SplitN(s, ".", 3)
	if len(parts) >= 2 {
		major, err := strconv.ParseUint(parts[0], 10, 8)
		minor, err2 := strconv.ParseUint(parts[1], 10, 8)
		if err == nil && err2 == nil && minor < 100 {
			return int(major)*100 + int(minor), nil
		}
	}
	return 0, fmt.Errorf("server version %q has no major and minor number", s)
}

// Modern reports whether the dialect is that of 6.0 or later.
func (d Dialect) Modern() bool {
	f, err := d.format()
	return err == nil && f.modern
}
