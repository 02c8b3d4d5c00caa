package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"

	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/sqlstore"
)

// One of several processes builds the report. The program imports a driver, here
// github.com/jackc/pgx/v5/stdlib, and its tables were created before.
func Example() {
	ctx := context.Background()
	db, err := sql.Open("pgx", os.Getenv("DATABASE"))
	if err != nil {
		log.Fatal(err)
	}
	store, err := sqlstore.Postgres(db, sqlstore.Config{Locks: "app.locks", Pings: "app.lockpings"})
	if err != nil {
		log.Fatal(err)
	}
	if err := store.Check(ctx); err != nil {
		log.Fatal(err)
	}
	elect := locks.NewElect(locks.ElectConfig{Store: store, Who: "reports"})
	defer elect.Close()
	err = elect.Lock(ctx, "report", "nightly report", func(ctx context.Context) {
		fmt.Println("building it, token", locks.Token(ctx)) // until ctx is done
	})
	if err != nil {
		fmt.Println("not to the end:", err)
	}
}

// The tables are created once, for example by a program's installation.
func ExampleStore_Create() {
	db, err := sql.Open("mysql", os.Getenv("DATABASE"))
	if err != nil {
		log.Fatal(err)
	}
	store, err := sqlstore.MySQL(db, sqlstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if err := store.Create(context.Background()); err != nil {
		log.Fatal(err)
	}
}
