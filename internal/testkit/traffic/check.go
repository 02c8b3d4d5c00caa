package traffic

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
)

// finish waits until all has expired that will, so that no write follows.
func (o *rare) finish(ctx context.Context) error {
	for began := time.Now(); time.Since(began) < 10*time.Second; {
		docs, err := read(ctx, o.cluster, o.cfg.DB, expiring)
		if err != nil {
			return err
		}
		if expired(docs) == 0 {
			return nil
		}
		if err := o.wait(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	_, err := o.all(ctx, o.cfg.DB, one("drop", expiring)) // nobody deletes them there
	return err
}

// expired is how many documents have expired.
func expired(docs []bson.Raw) (n int) {
	for _, d := range docs {
		v := d.Lookup("at")
		if a, ok := v.ArrayOK(); ok {
			v, _ = a.IndexErr(1)
		}
		if at, ok := v.TimeOK(); ok && !at.After(past) {
			n++
		}
	}
	return n
}

// Check checks in a cluster, the one that was written to or one that mirrors it, what holds after each of rare's commands: no value is
// twice, no amount is lost, of aborted transactions nothing is there, groups have one stamp, and a collection made as $out does is complete. After
// Run, nothing has expired and is still there.
func Check(ctx context.Context, c mongo.Caller, db string) error {
	var faults []error
	for name, check := range map[string]func([]bson.Raw) error{
		pairs: checkPairs, accounts: checkAccounts, groups: checkGroups, report: checkReport,
		expiring: func(docs []bson.Raw) error {
			if n := expired(docs); n > 0 {
				return fmt.Errorf("%d documents have expired", n)
			}
			return nil
		},
	} {
		docs, err := read(ctx, c, db, name)
		if err == nil {
			err = check(docs)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("traffic: %s.%s: %w", db, name, err))
		}
	}
	return errors.Join(faults...)
}

func checkPairs(docs []bson.Raw) error {
	seen := map[int64]bool{}
	for _, d := range docs {
		v := d.Lookup("v").AsInt64()
		if seen[v] {
			return fmt.Errorf("value %d is there twice", v)
		}
		seen[v] = true
	}
	if len(docs) != pairsKeys {
		return fmt.Errorf("%d documents, want %d", len(docs), pairsKeys)
	}
	return nil
}

func checkAccounts(docs []bson.Raw) error {
	sum := int64(0)
	for _, d := range docs {
		if name, ok := d.Lookup("_id").StringValueOK(); ok {
			if strings.HasPrefix(name, "void") {
				return fmt.Errorf("%s was inserted by an aborted transaction", name)
			}
			continue
		}
		sum += d.Lookup("amount").AsInt64()
	}
	if sum != accountsKeys*balance {
		return fmt.Errorf("there are %d in all, want %d", sum, accountsKeys*balance)
	}
	return nil
}

func checkGroups(docs []bson.Raw) error {
	stamps := map[int64]int64{}
	for _, d := range docs {
		g, stamp := d.Lookup("_id").AsInt64()/membersOf, d.Lookup("stamp").AsInt64()
		if have, ok := stamps[g]; ok && have != stamp {
			return fmt.Errorf("group %d has stamps %d and %d", g, have, stamp)
		}
		stamps[g] = stamp
	}
	if len(docs) != groupsKeys*membersOf {
		return fmt.Errorf("%d documents, want %d", len(docs), groupsKeys*membersOf)
	}
	return nil
}

func checkReport(docs []bson.Raw) error {
	for _, d := range docs {
		if of, run := d.Lookup("of").AsInt64(), d.Lookup("run").AsInt64(); of != int64(len(docs)) || run != docs[0].Lookup("run").AsInt64() {
			return fmt.Errorf("%d documents; %s belongs to run %d, of %d", len(docs), d.Lookup("_id"), run, of)
		}
	}
	return nil
}
