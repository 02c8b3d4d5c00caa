//go:build !linux && !darwin

package spool

import (
	"errors"
	"os"
	"runtime"
)

var errSystem = errors.New("there are no spools on " + runtime.GOOS)

func takeLock(string, opener) (*os.File, error) { return nil, errSystem }

func freeBytes(string) (int64, error) { return 0, errSystem }

func isFull(error) bool { return false }

func isReadOnly(error) bool { return false }
