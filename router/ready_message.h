/* router/ready_message.h - what is printed once every launched worker is ready. Thread: control. */
#ifndef ROUTER_READY_MESSAGE_H
#define ROUTER_READY_MESSAGE_H

/* To stdout: the text of the file `path` (NULL, or one that cannot be read: a request to try), with
 * {url} and {model} replaced. */
void ready_message_print(const char *path, const char *url, const char *model);

#endif
