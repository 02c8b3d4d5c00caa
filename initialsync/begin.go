package initialsync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync/origin"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/syncsource"
)

// Begin chooses a member to copy and finds where the copy begins: the member's identity,
// the entry from which the oplog has to be read (beginFetchingTimestamp), and the entry
// after which it is applied (beginApplyingTimestamp), with the wall time of the latter.
func Begin(ctx context.Context, w *syncsource.Watcher, r *syncsource.Resolver, o event.Observer) (checkpoint.Copy, int64, error) {
	view := w.View()
	member, err := r.Resolve(ctx, view.Newest())
	if stale, ok := errors.AsType[*syncsource.TooStaleError](err); ok {
		// Members have written entries since they reported their newest one; they will
		// report it again.
		err = fmt.Errorf("%w: %v", syncsource.ErrNoSource, stale) //nolint:errorlint // To wrap it would make it final.
	}
	if err != nil {
		return checkpoint.Copy{}, 0, fmt.Errorf("choose a member to copy: %w", err)
	}
	id, err := origin.Identify(ctx, member.Caller, member.Host)
	if err != nil {
		return checkpoint.Copy{}, 0, err
	}
	if id.Blind() {
		o.Log(slog.LevelWarn,
			"the initial-sync id of the member that is copied may not be seen: if it is filled anew meanwhile, that is not noticed",
			slog.String(keyHost, member.Host), slog.String(keyGrant, origin.GrantSyncID))
	}
	at, err := origin.Begin(ctx, member.Caller)
	if err != nil {
		return checkpoint.Copy{}, 0, fmt.Errorf("begin a copy of %s: %w", member.Host, err)
	}
	return checkpoint.Copy{
		Number: 1, Phase: checkpoint.Copying, Host: member.Host, RBID: id.RBID,
		SyncID: id.SyncID, SyncIDUnread: id.Unread, SyncMark: id.SyncMark,
		FetchFrom: at.FetchFrom, Begin: at.Begin, Started: time.Now(),
	}, at.Wall, nil
}
