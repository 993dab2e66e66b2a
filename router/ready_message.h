/* router/ready_message.h - the message printed when all launched workers are ready. Thread:
 * control. */
#ifndef ROUTER_READY_MESSAGE_H
#define ROUTER_READY_MESSAGE_H

/* Prints the text of the file `path` with {url} and {model} replaced; NULL or unreadable: a request
 * to try. */
void ready_message_print(const char *path, const char *url, const char *model);

#endif
