package corpus

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Command is one command of a transcript, with its outcome.
type Command struct {
	// DB is the database that the command was sent to.
	DB string
	// Command and Reply are those recorded. One that was too large to be kept
	// is {"$omitted": SIZE}.
	Command, Reply bson.Raw
	// Error is {code, codeName, errmsg, labels} of a command that failed; then
	// there is no Reply.
	Error bson.Raw
	// Offset is where the command's line begins in its file, in bytes.
	Offset int64
}

// Commands yields the transcript, in order of completion. It ends with the first
// fault, a [*FileError]. A recording without a transcript yields just that: an
// fs.ErrNotExist.
func (s *Scenario) Commands() iter.Seq2[Command, error] {
	file := s.path("commands.jsonl")
	return func(yield func(Command, error) bool) {
		f, err := os.Open(file)
		if err != nil {
			yield(Command{}, fileError(file, plain(err)))
			return
		}
		defer f.Close() //nolint:errcheck // it was only read
		lines := bufio.NewReaderSize(f, 1<<16)
		var offset int64
		for number := 1; ; number++ {
			line, err := lines.ReadBytes('\n')
			atEnd := errors.Is(err, io.EOF)
			if err != nil && !atEnd {
				yield(Command{}, &FileError{File: file, Offset: offset, Err: err})
				return
			}
			if len(bytes.TrimSpace(line)) > 0 {
				c, err := parseCommand(line)
				if err != nil {
					err = &FileError{File: file, Offset: offset, Err: fmt.Errorf("%w: line %d: %w", ErrCorrupt, number, err)}
				}
				c.Offset = offset
				if !yield(c, err) || err != nil {
					return
				}
			}
			if atEnd {
				return
			}
			offset += int64(len(line))
		}
	}
}

func parseCommand(line []byte) (Command, error) {
	var text struct {
		DB                    string
		Command, Reply, Error json.RawMessage
	}
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&text); err != nil {
		return Command{}, err
	}
	c := Command{DB: text.DB}
	for _, part := range []struct {
		name string
		text json.RawMessage
		into *bson.Raw
	}{{"command", text.Command, &c.Command}, {"reply", text.Reply, &c.Reply}, {"error", text.Error, &c.Error}} {
		if part.text == nil {
			continue
		}
		var err error
		if *part.into, err = fromJSON(part.text); err != nil {
			return c, fmt.Errorf("%s: %w", part.name, err)
		}
	}
	if c.DB == "" || c.Command == nil || (c.Reply == nil) == (c.Error == nil) {
		return c, errors.New("a line has db, command, and either reply or error")
	}
	return c, nil
}
