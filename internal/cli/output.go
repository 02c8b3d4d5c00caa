package cli

import (
	"fmt"
	"io"
	"os"
	"regexp"

	"golang.org/x/term"
)

// Output is where a command writes.
type Output struct{ Results, Complaints io.Writer }

// Complain writes a line to Complaints, without passwords. An error of writing it
// is dropped: there is nowhere to report it.
func (o Output) Complain(format string, args ...any) {
	_, _ = fmt.Fprintln(o.Complaints, WithoutPasswords(fmt.Sprintf(format, args...)))
}

// secrets matches the secret parts of a connection string, with the text before
// each.
var secrets = regexp.MustCompile(`(mongodb(?:\+srv)?://[^\s:/@"']*:)[^\s"']*@` +
	`|((?i:CertificateKeyFilePassword|CertificateKeyPassword|authMechanismProperties)=)[^\s&;"']*`)

// WithoutPasswords hides the passwords of connection strings. The program's own
// messages have none, but the command line library quotes arguments that it
// cannot parse.
func WithoutPasswords(text string) string {
	return secrets.ReplaceAllStringFunc(text, func(found string) string {
		if part := secrets.FindStringSubmatch(found); part[1] != "" {
			return part[1] + "***@"
		}
		return secrets.FindStringSubmatch(found)[2] + "***"
	})
}

// OnTerminal reports whether w is a terminal, where a line can be redrawn.
func OnTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
