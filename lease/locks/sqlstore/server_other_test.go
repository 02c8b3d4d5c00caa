//go:build !linux

package sqlstore_test

import "syscall"

func (s *server) attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: s.credential}
}
