package share_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oplogrep/replicator/lease/locks/lockstest"
	"github.com/oplogrep/replicator/lease/share"
	"github.com/oplogrep/replicator/lease/share/sharetest"
)

// A process runs four jobs, and another one takes over when it shuts down. A program uses mongostore.Open and
// mongoboard.Open in place of the stores in memory, and the default times.
func Example() {
	store, board := lockstest.NewMemory(), sharetest.NewMemory()
	jobs := []string{"billing", "mail", "search", "stock"}
	started := make(chan string, 100)
	ctx, cancel := context.WithCancelCause(context.Background())
	run := func(ctx context.Context, running *sync.WaitGroup, member string) {
		s, err := share.New(share.Config{
			Store: store, Board: board, Group: "jobs", Member: member, TTL: 400 * time.Millisecond,
			Partitions: func(context.Context) ([]string, error) { return jobs, nil },
			Work: func(ctx context.Context, job string, _ int64) error {
				started <- job
				<-ctx.Done() // work, with the term as a fencing token
				return nil
			},
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		running.Go(func() { _ = s.Run(ctx) })
	}
	all := func() string {
		var list []string
		for len(list) < len(jobs) {
			if job := <-started; !slices.Contains(list, job) {
				list = append(list, job)
			}
		}
		slices.Sort(list)
		return strings.Join(list, " ")
	}
	var first, second sync.WaitGroup
	run(ctx, &first, "a")
	fmt.Println("a runs", all())
	alone, stop := context.WithCancelCause(context.Background())
	run(alone, &second, "b")
	cancel(errors.New("shutdown"))
	first.Wait()
	fmt.Println("b runs", all())
	stop(errors.New("shutdown"))
	second.Wait()
	status, err := share.State(context.Background(), board, store, "jobs")
	fmt.Println(len(status.Members), "members,", len(status.Partitions), "jobs", err)
	// Output:
	// a runs billing mail search stock
	// b runs billing mail search stock
	// 0 members, 4 jobs <nil>
}
