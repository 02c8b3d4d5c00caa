//go:build !linux && !darwin

package spool

import (
	"errors"
	"os"
	"runtime"
)

var errSystem = errors.New("no spool can be kept on " + runtime.GOOS)

func takeLock(string) (*os.File, error) { return nil, errSystem }

func freeBytes(string) (int64, error) { return 0, errSystem }

func isFull(error) bool { return false }
