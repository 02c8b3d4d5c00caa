package sqlstore_test

import "syscall"

// attributes make the process end with this one, also if that is killed.
func (s *server) attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: s.stop, Credential: s.credential}
}
