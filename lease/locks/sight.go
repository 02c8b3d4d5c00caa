package locks

import (
	"context"
	"fmt"
)

// Sight lists the locks of a store for people: as List does, but one with a TTL that was not renewed since the store's
// clock was set back is unlocked, as its process is gone. In the store it is locked: an Elect replaces it.
func Sight(ctx context.Context, s Store) ([]Record, error) {
	list, err := s.List(ctx, "")
	if err != nil {
		return nil, err
	}
	now, err := s.Clock(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask the store of the locks for the time: %w", err)
	}
	for i := range list {
		if r := &list[i]; r.TTL > 0 && r.Modified.Sub(now.Time) > r.TTL {
			r.State = Unlocked
		}
	}
	return list, nil
}
